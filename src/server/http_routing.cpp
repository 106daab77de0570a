#include <charconv>
#include <exception>

#include "base/test_fault.h"
#include "base/unix_time.h"
#include "server/anthropic_error.h"
#include "server/anthropic_plan.h"
#include "server/body_budget.h"
#include "server/http_server_impl.h"
#include "server/openapi.h"
#include "server/query.h"
#include "server/random_id.h"
#include "server/routes.h"
#include "server/tokenize_routes.h"
#include "server/tracked_exchange.h"

namespace tailrace {
namespace {

HttpResponse json_response(const Json& json, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = dump_json(json);
  return response;
}

Json openai_model(const ServedModel& served) {
  return {{"id", served.name},
          {"object", "model"},
          {"created", served.created_s},
          {"owned_by", "tailrace"},
          {"max_model_len", served.context_length}};
}

Json anthropic_model(const ServedModel& served) {
  return {{"type", "model"},
          {"id", served.name},
          {"display_name", served.name},
          {"created_at", utc_time(served.created_s * 1000)},
          {"max_input_tokens", served.context_length - 1},  // one of the context is the answer's
          {"max_tokens", served.context_length - 1},
          {"lifecycle", "active"},
          {"deprecated_at", nullptr},
          {"line", nullptr}};
}

}  // namespace

JsonLimits HttpServer::Impl::limits_of(const HttpRequest& request) {
  JsonLimits limits;
  limits.take_memory = [&request](size_t document_bytes) {
    return request.body_share->grow_to(static_cast<int64_t>(request.body.size() + document_bytes));
  };
  return limits;
}

void HttpServer::Impl::send(const Exchange& exchange, HttpResponse response) {
  metrics.http_answer(response.status);
  if (response.status == 500) events.write(LogLevel::kError, "failed", {{"error", response.body}});
  if (draining.load()) response.close = true;
  exchange->respond(std::move(response));
}

HttpHeaders HttpServer::Impl::prepare(HttpRequest& head) {
  head.key = keys->find(head.authorization, head.x_api_key);
  head.request_id = head.x_request_id;
  if (!is_request_id(head.request_id)) head.request_id = random_id("req_");
  HttpHeaders headers = {{"X-Request-Id", head.request_id}, {"request-id", head.request_id}};  // the latter Anthropic's
  cors.add_headers(head, headers);
  return headers;
}

std::optional<HttpResponse> HttpServer::Impl::by_head(const HttpRequest& head) const {
  const bool keys_required = keys->required();
  if (auto forbidden = keys_required ? std::nullopt : pages.refuse(head)) return forbidden;
  const std::string methods = methods_of(head.path);
  if (auto allowed = methods.empty() ? std::nullopt : cors.preflight(head, methods)) return allowed;
  return answer_by_head(head, keys_required);
}

// Of a request whose body stays unread.
std::optional<HttpResponse> HttpServer::Impl::refuse(const HttpRequest& head) {
  auto response = by_head(head);
  if (!response) return response;
  metrics.http_answer(response->status);
  RequestEntry entry(head);
  entry.set_status(response->status, response->error ? response->error->code : "");
  entry.end();
  events.write(LogLevel::kInfo, "refused", entry.to_json());
  return response;
}

void HttpServer::Impl::ended(const std::shared_ptr<RequestEntry>& entry) {
  requests.end(entry);
  const bool probe = always_answered(entry->path()) || entry->path() == "/debug/steps";  // asked for again and again
  events.write(probe ? LogLevel::kDebug : LogLevel::kInfo, "request", entry->to_json());
}

void HttpServer::Impl::route(Exchange exchange, HttpRequest request) {
  const auto entry = std::make_shared<RequestEntry>(request);
  request.entry = entry;
  exchange = std::make_shared<TrackedExchange>(std::move(exchange), entry,
                                               [this](const auto& which) { ended(which); });
  if (auto response = by_head(request)) return send(exchange, std::move(*response));
  if (find_route(request.method, request.path)->kind == RouteKind::kGenerates)
    requests.begin(entry);
  request.method == "POST" ? route_post(std::move(exchange), std::move(request))
                           : route_get(exchange, request);
}

void HttpServer::Impl::route_get(const Exchange& exchange, const HttpRequest& request) {
  if (request.path == "/health" || request.path == "/ready") {
    const HealthReport report = request.path == "/health" ? health() : ready();
    return send(exchange, json_response(report.body, report.http_status));
  }
  if (request.path == "/metrics") {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = metrics.serialize(open_now());
    return send(exchange, std::move(response));
  }
  if (request.path == "/openapi.json") {
    HttpResponse response;
    response.body = openapi_text();
    return send(exchange, std::move(response));
  }
  if (request.path == "/server_info") return send(exchange, json_response(server_info()));
  if (request.path.starts_with("/v1/responses/")) return stored_response(exchange, request);
  if (request.path == "/v1/requests") return send(exchange, json_response(requests.to_json(request.key.get())));
  if (request.path == "/debug/trace") return feed.trace(exchange, request.query);
  if (request.path == "/debug/steps") return send(exchange, feed.steps(request.query));
  if (is_page_path(request.path)) return send(exchange, page_answer(page, request));
  models(exchange, request);
}


// Answers are given, and the queue would take another request.
HealthReport HttpServer::Impl::ready() {
  HealthReport report = health();
  if (!report.admits || queue.depth() < queue.capacity()) return report;
  report.http_status = 503;
  report.body["status"] = "busy";
  report.body["message"] = "The queue is full (--max-queued-requests).";
  return report;
}

Json HttpServer::Impl::server_info() {
  std::shared_ptr<const Json> known;
  {
    std::lock_guard lock(mutex);
    known = info;
  }
  Json out = {{"version", TAILRACE_VERSION},
              {"state", health().body["status"]},
              {"uptime_s", static_cast<double>(now_ns() - started_ns) * 1e-9}};
  out.update(*known);
  out["config"]["api_keys"] = keys->all().size();  // SIGHUP reads them again
  out["config"]["max_connections"] = listener.max_connections();
  out["counters"] = metrics.engine_json();
  return out;
}

Metrics::Open HttpServer::Impl::open_now() const {
  Metrics::Open open{.connections = listener.num_connections(),
                     .body_bytes = listener.body_bytes_held(),
                     .stored_responses = responses.store().count(),
                     .stored_response_bytes = responses.store().held_bytes(),
                     .dropped_log_lines = events.num_dropped()};
  for (const auto& key : keys->all())
    open.key_sequences.emplace_back(key->name, key->use->running.load());
  if (open.key_sequences.empty())
    open.key_sequences.emplace_back("", status.running.load() + status.waiting.load());
  return open;
}

void HttpServer::Impl::stored_response(Exchange exchange, HttpRequest request) {
  workers.submit([this, exchange = std::move(exchange), request = std::move(request), guard = activity()] {
    auto answered = responses.answer(request.method, request.path, request.query, owner_of(request));
    if (!answered) return send(exchange, to_response(answered.error()));
    // As large as what was stored, and its reader may be slow.
    const Status room = request.body_share->grow_to(static_cast<int64_t>(request.body.size() + answered->body.size()));
    if (!room.ok()) return send(exchange, to_response(from_status(room)));
    answered->body_share = request.body_share;
    send(exchange, std::move(*answered));
  });
}

void HttpServer::Impl::models(const Exchange& exchange, const HttpRequest& request) {
  const auto served = current_model();
  if (const HealthReport report = health(); !served || !report.admits) {
    return send(exchange, to_response(report.refusal));
  }
  const bool anthropics = in_anthropics_form(request);
  const Json entry = anthropics ? anthropic_model(*served) : openai_model(*served);
  constexpr std::string_view kList = "/v1/models";
  if (request.path != kList) {
    const std::string name = percent_decoded(request.path.substr(kList.size() + 1));
    if (Status found = check_model_name(*served, name); !found.ok()) {
      return send(exchange, to_response({404, found.message(), "model", "model_not_found"}));
    }
    return send(exchange, json_response(entry));
  }
  Json data = Json::array({entry});
  const Query asked(request.query);
  if (const auto limit = asked.find("limit")) {
    int count = 0;
    const auto read = std::from_chars(limit->data(), limit->data() + limit->size(), count);
    if (read.ec != std::errc() || read.ptr != limit->data() + limit->size() || count < 1 || count > 1000) {
      return send(exchange, to_response({400, "limit is a whole number from 1 to 1000", "limit", "invalid_value"}));
    }
  }
  for (const char* name : {"after_id", "before_id"}) {
    const auto id = asked.find(name);
    if (id && *id != served->name) {
      const std::string what = std::string(name) + " is the id of no model here";
      return send(exchange, to_response({400, what, name, "invalid_value"}));
    }
    if (id) data = Json::array();  // there is one
  }
  if (!anthropics) return send(exchange, json_response({{"object", "list"}, {"data", std::move(data)}}));
  const Json id = data.empty() ? Json(nullptr) : entry["id"];
  send(exchange, json_response({{"data", std::move(data)}, {"has_more", false}, {"first_id", id}, {"last_id", id}}));
}

void HttpServer::Impl::route_post(Exchange exchange, HttpRequest request) {
  if (const HealthReport report = health(); !report.admits && request.path != "/abort") {
    return send(exchange, to_response(report.refusal));
  }
  // JSON, templates and tokenizing of a long prompt take seconds: not on the threads that answer
  // /health.
  auto job = [this, exchange = std::move(exchange), request = std::move(request),
              guard = activity()] {
    if (exchange->disconnected()) return;
    const double limit_s = config.limits.request_timeout_s;
    if (limit_s > 0 && static_cast<double>(now_ns() - request.received_ns) > limit_s * 1e9) {
      return send(exchange, to_response({504, "The request took longer than --request-timeout.", "",
                                         "timeout"}));
    }
    try {
      answer_post(exchange, request, guard);
    } catch (const std::exception& error) {
      const std::string what =
          std::string("The server could not serve this request: ") + error.what();
      send(exchange, to_response({500, what, "", "internal"}));
    }
  };
  if (test_fault(Fault::kInlineTokenize)) return job();
  workers.submit(std::move(job));
}

void HttpServer::Impl::answer_post(const Exchange& exchange, const HttpRequest& request,
                                   std::shared_ptr<void> guard) {
  const auto served = current_model();
  if (request.path == "/v1/responses/input_tokens") {
    auto counted = responses.count_input(*served, request.body, owner_of(request), limits_of(request));
    return send(exchange, counted ? json_response(*counted) : to_response(counted.error()));
  }
  if (request.path.starts_with("/v1/responses/")) return stored_response(exchange, request);
  if (request.path == "/abort") return abort_requests(exchange, request);
  if (request.path == "/flush_cache") {
    const auto flushed = flush_cache();
    if (!flushed) return send(exchange, to_response(from_status(flushed.error())));
    return send(exchange, json_response({{"status", "ok"},
                                         {"flushed_blocks", flushed->blocks},
                                         {"running", flushed->running}}));
  }
  if (request.path == "/tokenize" || request.path == "/detokenize") {
    auto result = request.path == "/tokenize"
                      ? answer_tokenize(*served, request, limits_of(request))
                      : answer_detokenize(*served, request, limits_of(request));
    return send(exchange, result ? json_response(*result) : to_response(result.error()));
  }
  if (request.path == "/v1/messages/count_tokens") {
    auto counted = answer_count_tokens(*served, request.body, limits_of(request));
    return send(exchange, counted ? json_response(*counted) : to_response(counted.error()));
  }
  generate(exchange, *served, request, std::move(guard));
}

void HttpServer::Impl::abort_requests(const Exchange& exchange, const HttpRequest& request) {
  const auto wanted = parse_abort_request(request.body, limits_of(request));
  if (!wanted) return send(exchange, to_response(wanted.error()));
  const std::vector<std::string> ids = requests.abort(*wanted, request.key.get());
  if (!wanted->empty() && ids.empty()) {
    return send(exchange,
                to_response({404, "No request of this id is running.", "request_id", "not_found"}));
  }
  send(exchange, json_response({{"status", "ok"}, {"aborted", ids}}));
}

ApiExpected<GenerationPlan> HttpServer::Impl::plan(const ServedModel& served,
                                                   const HttpRequest& request) {
  const RequestBounds bounds = bounds_of(served, config.limits.max_queued_requests);
  if (request.path == "/v1/completions") {
    auto parsed = parse_completion_request(request.body, bounds, limits_of(request));
    return parsed ? plan_completion(served, *parsed, seeds) : api_fail(parsed.error());
  }
  if (request.path == "/v1/responses") {
    auto plan = responses.plan(served, request.body, owner_of(request), bounds, limits_of(request), seeds);
    if (plan) plan->body_share = request.body_share;  // its events say what the request said
    return plan;
  }
  if (request.path == "/v1/messages") {
    auto parsed = parse_messages_request(request.body, limits_of(request));
    return parsed ? plan_messages(served, std::move(*parsed), request.request_id, seeds) : api_fail(parsed.error());
  }
  auto parsed = parse_chat_request(request.body, bounds, limits_of(request));
  return parsed ? plan_chat(served, *parsed, seeds) : api_fail(parsed.error());
}

void HttpServer::Impl::generate(const Exchange& exchange, const ServedModel& served,
                                const HttpRequest& request, std::shared_ptr<void> guard) {
  // Before the work of reading it.
  if (auto full = share_refusal(request.key, 1, "")) return send(exchange, to_response(*full));
  auto planned = plan(served, request);
  if (!planned) return send(exchange, to_response(planned.error()));
  auto share = take_share(request.key, static_cast<int32_t>(planned->requests.size()), "n");
  if (!share) return send(exchange, to_response(share.error()));
  planned->received_ns = request.received_ns;
  planned->entry = request.entry;
  auto generation = std::make_shared<Generation>(
      std::move(*planned), GenerationContext{queue, metrics, workers}, exchange);
  Generation* key = generation.get();
  generation->set_on_done([this, key, guard = std::move(guard), share = std::move(*share)] {
    std::shared_ptr<Generation> last;  // destroyed after the lock is released
    std::lock_guard lock(mutex);
    if (auto it = generations.find(key); it != generations.end()) {
      last = std::move(it->second);
      generations.erase(it);
    }
  });
  {
    std::lock_guard lock(mutex);
    generations.emplace(key, generation);
  }
  note_work();
  if (Status queued = generation->submit(); !queued.ok()) generation->abort(from_status(queued));
}

}  // namespace tailrace
