// The sockets: accepts connections, reads bounded HTTP/1.1 requests, writes answers, notices clients that leave.
//
// What counts as leaving: a reset, or a full close. A half-close (shutdown(SHUT_WR) after the request) does not: when the
// peer's FIN arrives while an answer is pending, the server sends a probe that every client must skip (an SSE comment, or
// an interim `100 Continue` before a plain response); a peer that has really closed answers it with a reset.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "server/config.h"
#include "server/http_exchange.h"

namespace tailrace {

// What the API decides by a request's headers. Called on a connection's executor; must not block.
struct HttpHeadRules {
  // Settles request_id and key of a request, and says which headers every answer to it has. `head` holds nothing where the
  // request could not be read so far.
  std::function<HttpHeaders(HttpRequest& head)> prepare = [](HttpRequest&) { return HttpHeaders(); };
  // The answer to a request whose body is not worth reading; it is sent and the connection closed. None: read the body.
  std::function<std::optional<HttpResponse>(const HttpRequest& head)> refuse = [](const auto&) { return std::nullopt; };
  // Whether it is answered on the few connections that are kept for this when --max-connections others are open.
  std::function<bool(const HttpRequest& head)> always_answered = [](const auto&) { return false; };
};

class HttpListener {
 public:
  // Called on a connection's executor for each complete request; must not block.
  using Handler = std::function<void(std::shared_ptr<HttpExchange>, HttpRequest)>;

  // on_large_end: see BodyBudget; outlives every request. on_fault: what ended a connection that should have gone on; must not
  // block.
  HttpListener(const HttpOptions& options, Handler handler, HttpHeadRules rules = {},
               std::function<void()> on_large_end = nullptr, std::function<void(const char* what)> on_fault = nullptr);
  ~HttpListener();  // every exchange has to be released before: it refers to the I/O threads' context

  // Listens and starts the I/O threads; the port that was bound. kInvalidArgument: address in use or not ours.
  Expected<uint16_t> start();
  // Idle connections are closed now, others after their answer; new ones are still accepted.
  void set_draining();
  // Closes everything and joins the threads; idempotent.
  void stop();
  int num_connections() const;
  // --max-connections, or as many as the process may have files open; after start().
  int max_connections() const;
  // Of them, those with a part of a request whose answer is not yet written.
  int num_busy() const;
  // Of request bodies that are arriving or not yet done with, and of what is parsed from them; at most --max-total-body-bytes.
  int64_t body_bytes_held() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace
