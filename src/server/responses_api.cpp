#include "server/responses_api.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/unix_time.h"
#include "server/query.h"
#include "server/random_id.h"
#include "server/responses_input.h"
#include "server/responses_request.h"
#include "server/responses_writer.h"

namespace tailrace {
namespace {

constexpr std::string_view kPrefix = "/v1/responses/", kItems = "/input_items", kCancel = "/cancel";

ApiError not_stored(std::string_view id, const char* param, const char* code) {
  return {404, "There is no response `" + std::string(id.substr(0, 100)) + "` stored here.", param, code};
}

// Chat's errors name chat's fields.
ApiError in_own_words(ApiError error) {
  if (error.param == "messages") error.param = "input";
  constexpr std::string_view kEffort = "reasoning_effort";
  if (error.param != kEffort) return error;
  error.param = "reasoning.effort";
  if (const size_t at = error.message.find(kEffort); at != std::string::npos) {
    error.message.replace(at, kEffort.size(), error.param);
  }
  return error;
}

// Documents that are parsed one after the other for one request, and live together.
class DocumentBudget {
 public:
  explicit DocumentBudget(const JsonLimits& limits) : limits_(limits) {}

  JsonLimits next() {
    held_ += std::exchange(last_, 0);
    JsonLimits out = limits_;
    out.take_memory = [this](size_t document_bytes) {
      last_ = document_bytes;
      return limits_.take_memory ? limits_.take_memory(held_ + document_bytes) : Status();
    };
    return out;
  }

 private:
  const JsonLimits& limits_;
  size_t held_ = 0, last_ = 0;
};

// Gives the request its messages, those of the answers it goes on from before them.
std::optional<ApiError> add_messages(ResponsesRequest& request, const StoredResponse* previous,
                                     DocumentBudget& budget) {
  ResponsesConversation conversation;
  conversation.add_instructions(request.instructions);
  if (previous != nullptr) {
    for (const auto& turn : previous->turns) {
      auto earlier = parse_json(turn->text, budget.next());
      if (!earlier) return from_status(Status(earlier.error().code, earlier.error().message));
      if (auto error = conversation.add_items(*earlier, "previous_response_id")) return error;
    }
  }
  const Json text = Json::array({{{"role", "user"}, {"content", request.input}}});
  if (auto error = conversation.add_items(request.input.is_string() ? text : request.input, "input")) return error;
  request.chat.messages = conversation.take_messages();
  if (!request.chat.messages.empty()) return std::nullopt;
  return bad_field("input", "input holds nothing that the model could read").value();
}

// The response before its first item.
Json response_head(const ResponsesRequest& request, const std::string& id, const ServedModel& model,
                   const SamplingParams& sampling) {
  Json out = {{"id", id},
              {"object", "response"},
              {"created_at", unix_seconds()},
              {"status", "in_progress"},
              {"background", false},
              {"completed_at", nullptr},
              {"error", nullptr},
              {"incomplete_details", nullptr},
              {"model", model.name},
              {"output", Json::array()},
              {"service_tier", "default"},
              {"store", request.store},
              {"temperature", sampling.temperature},
              {"top_p", sampling.top_p},
              {"truncation", "disabled"},
              {"usage", nullptr}};
  out.update(request.echo);
  return out;
}

HttpResponse json_text(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

// The whole input, earlier turns included, a page at a time.
ApiExpected<HttpResponse> list_items(const StoredResponse& stored, const Query& query) {
  int limit = 0;
  const std::string asked = query.find("limit").value_or("20"), order = query.find("order").value_or("desc");
  const auto read = std::from_chars(asked.data(), asked.data() + asked.size(), limit);
  if (read.ptr != asked.data() + asked.size() || read.ec != std::errc() || limit < 1 || limit > 100) {
    return bad_field("limit", "limit must be a whole number from 1 to 100, not '" + asked.substr(0, 64) + "'");
  }
  if (order != "asc" && order != "desc") {
    return bad_field("order", "order must be asc or desc, not '" + order.substr(0, 64) + "'");
  }
  std::vector<std::pair<const StoredTurn*, size_t>> items;
  for (size_t i = 0; i + 1 < stored.turns.size(); ++i) {
    for (size_t item = 0; item < stored.turns[i]->items.size(); ++item) items.emplace_back(stored.turns[i].get(), item);
  }
  const auto id_of = [](const auto& place) -> const std::string& { return place.first->items[place.second].id; };
  if (order != "asc") std::reverse(items.begin(), items.end());
  auto first = items.begin();
  if (const auto after = query.find("after")) {
    first = std::find_if(first, items.end(), [&](const auto& place) { return id_of(place) == *after; });
    if (first == items.end()) return bad_field("after", "after is the id of no item here");
    ++first;
  }
  const auto last = first + std::min<ptrdiff_t>(limit, items.end() - first);
  std::string out = R"({"object":"list","data":[)";
  for (auto place = first; place != last; ++place) {
    if (place != first) out += ',';
    out += place->first->item(place->second);
  }
  const Json ids = first == last ? Json::array({nullptr, nullptr}) : Json::array({id_of(*first), id_of(*(last - 1))});
  out += R"(],"first_id":)" + dump_json(ids[0]) + R"(,"last_id":)" + dump_json(ids[1]);
  return json_text(out + R"(,"has_more":)" + (last == items.end() ? "false}" : "true}"));
}

}  // namespace

// Null where the request goes on from none.
ApiExpected<std::shared_ptr<const StoredResponse>> ResponsesApi::previous_of(const ResponsesRequest& request,
                                                                             const Owner& owner) {
  if (request.previous_id.empty()) return nullptr;
  auto found = store_->find(request.previous_id, owner);
  if (found) return found;
  return api_fail(not_stored(request.previous_id, "previous_response_id", "previous_response_not_found"));
}

ApiExpected<GenerationPlan> ResponsesApi::plan(const ServedModel& model, std::string_view body, const Owner& owner,
                                               const RequestBounds& bounds, const JsonLimits& limits,
                                               SeedSource& seeds) {
  DocumentBudget budget(limits);
  auto request = parse_responses_request(body, bounds, store_->enabled(), budget.next());
  if (!request) return api_fail(request.error());
  const auto previous = previous_of(*request, owner);
  if (!previous) return api_fail(previous.error());
  const std::string token = random_id("");
  if (auto error = add_messages(*request, previous->get(), budget)) return api_fail(std::move(*error));
  auto plan = plan_chat(model, request->chat, seeds);
  if (!plan) return api_fail(in_own_words(std::move(plan.error())));
  ResponsesAnswer answer{
      .head = response_head(*request, "resp_" + token, model, plan->requests[0]->sampling),
      .rules = {.token = token,
                .encrypted_reasoning = request->encrypted_reasoning,
                .tokenizer = plan->tokenizer,
                .namespaced = std::move(request->chat.tools.namespaced)},
      .store = store_,
      .pending = nullptr};
  if (request->store) {
    answer.pending = store_->begin(*previous ? (*previous)->turns : StoredResponse::Turns(),
                                   input_items(request->input, token), owner);
    answer.head["store"] = answer.pending != nullptr;
  }
  plan->id = "resp_" + token;
  plan->writer = make_responses_writer(std::move(answer));
  return plan;
}

ApiExpected<Json> ResponsesApi::count_input(const ServedModel& model, std::string_view body, const Owner& owner,
                                            const JsonLimits& limits) {
  DocumentBudget budget(limits);
  auto request = parse_input_tokens_request(body, budget.next());
  if (!request) return api_fail(request.error());
  const auto previous = previous_of(*request, owner);
  if (!previous) return api_fail(previous.error());
  if (auto error = add_messages(*request, previous->get(), budget)) return api_fail(std::move(*error));
  const auto prompt = chat_prompt(model, request->chat);
  if (!prompt) return api_fail(in_own_words(prompt.error()));
  return Json{{"object", "response.input_tokens"}, {"input_tokens", prompt->ids.size()}};
}

ApiExpected<HttpResponse> ResponsesApi::answer(std::string_view method, std::string_view path, std::string_view query,
                                               const Owner& owner) {
  std::string_view id = path.substr(kPrefix.size());
  const bool items = id.ends_with(kItems), cancel = id.ends_with(kCancel);
  id = id.substr(0, id.find('/'));
  if (method == "DELETE") {
    if (!store_->erase(std::string(id), owner)) return api_fail(not_stored(id, "", "not_found"));
    return json_text(dump_json({{"id", id}, {"object", "response"}, {"deleted", true}}));
  }
  if (cancel) {
    return api_fail({400,
                     "Only a response that was created with \"background\": true can be cancelled, and this server has "
                     "none. Close the connection of one that is being written, or POST /abort its id as request_id.",
                     "", "unsupported"});
  }
  const Query asked(query);
  for (const char* name : {"include", "include[]"}) {
    for (const std::string& what : asked.all(name)) {
      if (!is_includable(what)) return bad_field(name, std::string(name) + " " + unknown_include(what));
    }
  }
  const auto stored = store_->find(std::string(id), owner);
  if (!stored) return api_fail(not_stored(id, "", "not_found"));
  if (items) return list_items(*stored, asked);
  if (asked.find("stream").value_or("false") != "false") {
    return bad_field("stream", "stream must be false: a stored response is given as a whole", "unsupported_parameter");
  }
  return json_text(stored->response);
}

}  // namespace tailrace
