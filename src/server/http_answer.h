// HttpAnswer: the bytes of one answer on their way from any thread to the connection that sends them; no sockets here.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/http_exchange.h"

namespace tailrace {

// How an answer is put into bytes, besides what it says.
struct WireForm {
  bool keep_alive = false;  // else (or with response.close) it says `Connection: close`
  bool head_only = false;   // to HEAD: the headers that GET would get
  HttpHeaders headers;      // of every answer to this request
};

// Status line, headers and body.
std::string format_response(const HttpResponse& response, const WireForm& form);

// An error in OpenAI's form; 429 and 503 get Retry-After.
HttpResponse to_response(const ApiError& error);

class HttpAnswer : public HttpExchange {
 public:
  struct Wiring {
    size_t max_unsent_bytes = 0;                       // behind the write that is being sent, however large that one is
    bool http_1_0 = false;
    bool head_only = false;                            // as in WireForm
    HttpHeaders headers;
    std::function<void(HttpResponse&)> reword;         // puts an error into the form of the path's API; may be null
    std::function<bool()> keep_alive;                  // asked when the head is formatted
    std::function<void(std::function<void()>)> post;   // to the connection's executor
    std::function<void()> wake;                        // on that executor: there are bytes, or the end
  };
  explicit HttpAnswer(Wiring wiring) : wiring_(std::move(wiring)) {}

  void respond(HttpResponse response) override;
  void begin_stream(HttpResponse head) override;
  void write(std::string_view bytes) override;
  void end_stream() override;
  void post(std::function<void()> task) override { wiring_.post(std::move(task)); }
  void on_disconnect(std::function<void()> callback) override;
  bool disconnected() const override;

  // The connection's side, on its executor.
  std::string take_unsent();      // everything queued; "" when there is nothing
  void sent(size_t bytes);        // so many of the taken bytes reached the socket
  bool ended() const;             // the answer is complete (and once take_unsent() is "", sent)
  bool cut_off() const;           // too many unsent bytes
  bool close_after() const;       // the response said Connection: close
  // Queues bytes that a live client skips and a closed one answers with a reset; false where HTTP/1.0 has no such
  // thing.
  bool probe();
  void client_left();             // runs the disconnect callback unless the answer has ended

 private:
  void add_locked(std::string_view bytes);    // as they are
  void queue_locked(std::string_view bytes);  // as a chunk
  void signal_locked();

  const Wiring wiring_;
  mutable std::mutex mutex_;
  std::shared_ptr<BodyShare> body_share_;  // the response's
  std::string unsent_;            // not yet handed to the connection
  std::deque<size_t> runs_;       // bytes of writes that are not in the socket, small ones together; the first is being sent
  size_t behind_ = 0;             // bytes of all but the first
  bool streaming_ = false, begun_ = false, ended_ = false, left_ = false, cut_off_ = false, close_ = false;
  bool signalled_ = false;
  std::function<void()> on_disconnect_;
};

}  // namespace tailrace
