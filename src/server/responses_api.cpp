#include "server/responses_api.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/unix_time.h"
#include "server/query.h"
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

// The messages of the request, those of the answers it goes on from before them.
ApiExpected<Json> messages_of(const ResponsesRequest& request, const StoredResponse* previous, const Json& items,
                              DocumentBudget& budget) {
  ResponsesConversation conversation;
  conversation.add_instructions(request.instructions);
  if (previous != nullptr) {
    for (const auto& turn : previous->turns) {
      auto earlier = parse_json(*turn, budget.next());
      if (!earlier) return api_fail(from_status(Status(earlier.error().code, earlier.error().message)));
      if (auto error = conversation.add_items(*earlier, "previous_response_id")) return api_fail(std::move(*error));
    }
  }
  if (auto error = conversation.add_items(items, "input")) return api_fail(std::move(*error));
  Json messages = conversation.take_messages();
  if (messages.empty()) return bad_field("input", "input holds nothing that the model could read");
  return messages;
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
  std::vector<Json> items;
  for (size_t i = 0; i + 1 < stored.turns.size(); ++i) {
    // What a client sent and this server labelled: it may hold more values than a request's body may.
    JsonLimits limits;
    limits.max_values *= 4;
    auto turn = parse_json(*stored.turns[i], limits);
    if (!turn || !turn->is_array()) return api_fail({500, "the stored input cannot be read again", "", "internal_error"});
    std::move(turn->begin(), turn->end(), std::back_inserter(items));
  }
  if (order != "asc") std::reverse(items.begin(), items.end());
  auto first = items.begin();
  if (const auto after = query.find("after")) {
    first = std::find_if(first, items.end(), [&](const Json& item) { return item["id"] == *after; });
    if (first == items.end()) return bad_field("after", "after is the id of no item here");
    ++first;
  }
  const auto last = first + std::min<ptrdiff_t>(limit, items.end() - first);
  Json page = Json::array();
  for (auto item = first; item != last; ++item) page.push_back(std::move(*item));
  Json out = {{"object", "list"},
              {"data", page},
              {"has_more", last != items.end()},
              {"first_id", nullptr},
              {"last_id", nullptr}};
  if (!page.empty()) {
    out["first_id"] = page.front()["id"];
    out["last_id"] = page.back()["id"];
  }
  return json_text(dump_json(out));
}

}  // namespace

ApiExpected<GenerationPlan> ResponsesApi::plan(const ServedModel& model, std::string_view body, const Owner& owner,
                                               const RequestBounds& bounds, const JsonLimits& limits,
                                               SeedSource& seeds) {
  DocumentBudget budget(limits);
  auto request = parse_responses_request(body, bounds, store_->enabled(), budget.next());
  if (!request) return api_fail(request.error());
  std::shared_ptr<const StoredResponse> previous;
  if (!request->previous_id.empty()) {
    previous = store_->find(request->previous_id, owner);
    if (!previous) {
      return api_fail(not_stored(request->previous_id, "previous_response_id", "previous_response_not_found"));
    }
  }
  const std::string token = letters_and_digits(seeds.next(), 10) + letters_and_digits(seeds.next(), 10);
  const Json text = Json::array({{{"role", "user"}, {"content", request->input}}});
  auto messages = messages_of(*request, previous.get(), request->input.is_string() ? text : request->input, budget);
  if (!messages) return api_fail(messages.error());
  request->chat.messages = std::move(*messages);
  auto plan = plan_chat(model, request->chat, seeds);
  if (!plan) return api_fail(in_own_words(std::move(plan.error())));
  ResponsesAnswer answer{
      .head = response_head(*request, "resp_" + token, model, plan->requests[0]->sampling),
      .rules = {.token = token,
                .encrypted_reasoning = request->encrypted_reasoning,
                .tokenizer = plan->tokenizer,
                .namespaced = std::move(request->chat.tools.namespaced)},
      .store = nullptr,
      .owner = owner,
      .turns = {}};
  if (request->store) {
    auto turns = store_->begin(previous ? previous->turns : StoredResponse::Turns(), dump_json(input_items(request->input, token)), owner);
    if (turns) answer.store = store_;
    if (turns) answer.turns = std::move(*turns);
    answer.head["store"] = turns.has_value();
  }
  plan->id = "resp_" + token;
  plan->writer = make_responses_writer(std::move(answer));
  return plan;
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
  const auto stored = store_->find(std::string(id), owner);
  if (!stored) return api_fail(not_stored(id, "", "not_found"));
  const Query asked(query);
  if (items) return list_items(*stored, asked);
  if (asked.find("stream").value_or("false") != "false") {
    return bad_field("stream", "stream must be false: a stored response is given as a whole", "unsupported_parameter");
  }
  return json_text(stored->response);
}

}  // namespace tailrace
