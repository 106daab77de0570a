// One HTTP request and the way to answer it, as plain types: the seam between the sockets (http_listener) and the API.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"

namespace tailrace {

struct ApiKey;
class BodyShare;
class RequestEntry;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;         // "GET"
  std::string path;           // without the query
  std::string query;          // what follows the first '?', as it was sent
  // Headers' values, "" when absent.
  std::string authorization, x_api_key, content_type, accept_encoding, x_request_id, origin, host;
  std::string fetch_site;  // Sec-Fetch-Site: where browsers say that the page is which asks
  std::string requested_method, requested_headers;  // Access-Control-Request-*
  bool by_anthropics_client = false;                // there is an anthropic-version
  // Settled by HttpHeadRules::prepare.
  std::string request_id;             // in answers and logs
  std::shared_ptr<const ApiKey> key;  // the client's; null: none, or a wrong one
  std::shared_ptr<RequestEntry> entry;  // what the server knows of it; set where it is routed
  // Counts the body, and what is made of it, against --max-total-body-bytes while anybody holds the request. Before
  // `body`, which is to be freed first.
  std::shared_ptr<BodyShare> body_share;
  std::string body;
  int64_t received_ns = 0;    // now_ns when the last byte had arrived
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::shared_ptr<BodyShare> body_share;  // counts a large body until it is sent; null: it is small
  std::string body;
  HttpHeaders headers;
  bool close = false;         // the connection is closed after this response
  std::optional<ApiError> error;  // what the body says, in OpenAI's form
};

// The answer to one request: either respond() once, or begin_stream(), any number of write()s and end_stream(). All
// functions may be called from any thread; calls after the client left do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual void respond(HttpResponse response) = 0;

  // Sends the head; `head.body` must be empty. Chunked on HTTP/1.1, until close on HTTP/1.0.
  virtual void begin_stream(HttpResponse head) = 0;
  // Queues bytes. A client that lets more than the configured bound pile up unsent is cut off.
  virtual void write(std::string_view bytes) = 0;
  virtual void end_stream() = 0;

  // Runs `task` on the connection's own serial executor: short, non-blocking work only.
  virtual void post(std::function<void()> task) = 0;

  // `callback` runs at most once, on that executor: when the client left or was cut off before the answer ended. At
  // once if that has happened already; never after the end of the answer.
  virtual void on_disconnect(std::function<void()> callback) = 0;
  virtual bool disconnected() const = 0;
};

}  // namespace tailrace
