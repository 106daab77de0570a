// A small HTTP client over plain sockets for tests: raw bytes in and out, so that odd requests can be sent.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace::test {

struct HttpReply {
  int status = 0;                              // 0: the connection ended before a status line
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // unchunked
  bool complete = false;                       // the body arrived in full
  std::vector<std::string> interim;            // status lines of 1xx responses before it
};

// One connection to 127.0.0.1. Every read gives up after timeout_ms.
class HttpConnection {
 public:
  explicit HttpConnection(uint16_t port, int timeout_ms = 20000);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool send_raw(std::string_view bytes);
  bool send_request(const std::string& method, const std::string& path, std::string_view body = "",
                    const std::string& extra_headers = "");
  HttpReply read_reply();
  // Reads until `text` has been seen in the raw bytes; false at the end or after the timeout.
  bool read_until(const std::string& text);
  // True when the peer closes within the timeout.
  bool wait_closed();
  void shutdown_write();
  void close();
  void set_receive_buffer(int bytes);
  const std::string& raw() const { return raw_; }  // everything read so far and not yet taken by read_reply

 private:
  bool fill();

  int fd_ = -1;
  const int timeout_ms_;
  std::string raw_;
};

// One request on a connection of its own.
HttpReply http_get(uint16_t port, const std::string& path, const std::string& extra_headers = "");
HttpReply http_post(uint16_t port, const std::string& path, std::string_view body, const std::string& extra_headers = "");

// The data of the SSE events in a body, in order ("[DONE]" included).
std::vector<std::string> sse_data(const std::string& body);

}  // namespace tailrace::test
