// The HTTP client of `tailrace chat`: plain sockets, one request per connection, events as they arrive.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/url.h"

namespace tailrace {

struct ServerAddress {
  std::string host = "127.0.0.1";
  std::string port = "8000";
  std::string path;     // before that of every request
  std::string api_key;  // "" sends none
};

// `default_port` where the URL names none. kUnsupported: https, since nothing here speaks TLS.
Expected<ServerAddress> address_of(const Url& url, const std::string& default_port);

struct PlainReply {
  int status = 0;
  std::string body;  // of a stream: empty
};

// Blocking. kUnavailable: cannot connect, or the connection ended early; kCancelled: `stop` said so.
class ChatConnection {
 public:
  // `stop` is asked at least ten times a second while waiting, and whenever a signal interrupts.
  ChatConnection(ServerAddress address, std::function<bool()> stop) : address_(std::move(address)), stop_(std::move(stop)) {}

  Expected<PlainReply> get(const std::string& path);
  // `on_event` gets the data of each server-sent event of a 200 stream. Another answer comes back as the reply's body.
  Expected<PlainReply> post(const std::string& path, const std::string& body,
                            const std::function<void(std::string_view)>& on_event);

 private:
  Expected<PlainReply> exchange(const std::string& request, const std::function<void(std::string_view)>& on_event);
  std::string headers() const;

  const ServerAddress address_;
  const std::function<bool()> stop_;
};

}  // namespace tailrace
