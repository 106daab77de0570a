#include "server/openai_request.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "server/chat_messages.h"
#include "server/json_fields.h"
#include "server/request_labels.h"

namespace tailrace {
namespace {

constexpr int32_t kMaxTokens = INT32_MAX;
constexpr size_t kMaxPromptBytes = size_t{1} << 30;  // the body's bound is lower
constexpr size_t kMaxModelBytes = 1024;
constexpr size_t kMaxTemplateKwargsBytes = size_t{256} << 10;  // switches and a few texts; every render copies them

void read_stop(FieldReader& fields, std::vector<std::string>& out) {
  const Json* value = fields.get("stop");
  if (value == nullptr) return;
  const size_t count = value->is_array() ? value->size() : 1;
  if (count > kMaxStopStrings) {
    return fields.set_error("stop", "holds more than " + std::to_string(kMaxStopStrings) + " strings");
  }
  for (size_t i = 0; i < count; ++i) {
    const Json& stop = value->is_array() ? (*value)[i] : *value;
    if (!stop.is_string()) {
      return fields.set_error("stop", std::string("must be a string or an array of strings, not hold ") + json_kind(stop));
    }
    auto text = stop.get<std::string>();
    if (text.size() > kMaxStopBytes) {
      return fields.set_error("stop", "holds a string longer than " + std::to_string(kMaxStopBytes) + " bytes");
    }
    if (!text.empty()) out.push_back(std::move(text));  // every text holds "", so it cannot mean anything
  }
}

void take_token_ids(FieldReader& fields, const char* name, const Json& ids, int32_t vocab, std::vector<TokenId>& out) {
  out.reserve(ids.size());
  for (const Json& id : ids) {
    if (!id.is_number_integer() || id < 0 || id >= vocab) {
      return fields.set_error(name, "must hold token ids from 0 to " + std::to_string(vocab - 1) + ", not " +
                                        dump_json(id).substr(0, 100));
    }
    out.push_back(id.get<TokenId>());
  }
}

void read_token_ids(FieldReader& fields, const char* name, int32_t vocab, size_t max_count, std::vector<TokenId>& out) {
  const Json* value = fields.get(name);
  if (value == nullptr) return;
  if (!value->is_array()) return fields.set_error(name, std::string("must be an array of token ids, not ") + json_kind(*value));
  if (value->size() > max_count) return fields.set_error(name, "holds more than " + std::to_string(max_count) + " ids");
  take_token_ids(fields, name, *value, vocab, out);
}

void read_logit_bias(FieldReader& fields, int32_t vocab, std::vector<std::pair<TokenId, float>>& out) {
  const Json* value = fields.get("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object()) {
    return fields.set_error("logit_bias", std::string("must be an object, not ") + json_kind(*value));
  }
  if (value->size() > static_cast<size_t>(kMaxLogitBias)) {
    return fields.set_error("logit_bias", "holds more than " + std::to_string(kMaxLogitBias) + " ids");
  }
  for (const auto& [key, bias] : value->items()) {
    TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab) {
      return fields.set_error("logit_bias", "must have token ids from 0 to " + std::to_string(vocab - 1) +
                                                " as keys, not '" + key.substr(0, 100) + "'");
    }
    const double number = bias.is_number() ? bias.get<double>() : -1000;
    if (!(number >= -100 && number <= 100)) {
      return fields.set_error("logit_bias", "must hold numbers in [-100, 100], not " + dump_json(bias).substr(0, 100));
    }
    const auto same = std::find_if(out.begin(), out.end(), [id = id](const auto& entry) { return entry.first == id; });
    if (same != out.end()) return fields.set_error("logit_bias", "names token " + std::to_string(id) + " twice");
    out.emplace_back(id, static_cast<float>(number));
  }
}

void read_max_tokens(FieldReader& fields, bool chat, std::optional<int32_t>& out) {
  fields.read("max_tokens", out, chat ? 1 : 0, kMaxTokens);
  if (!chat) return;
  std::optional<int32_t> newer;
  fields.read("max_completion_tokens", newer, 1, kMaxTokens);
  if (newer && out) return fields.set_error("max_tokens", "and max_completion_tokens exclude each other");
  if (newer) out = newer;
}

void read_stream_options(FieldReader& fields, GenerationParams& out) {
  fields.read("stream", out.stream);
  const Json* value = fields.get("stream_options");
  if (value == nullptr) return;
  if (!value->is_object()) {
    return fields.set_error("stream_options", std::string("must be an object, not ") + json_kind(*value));
  }
  if (!out.stream) return fields.set_error("stream_options", "is only allowed together with \"stream\": true");
  FieldReader options(*value, "stream_options.");
  options.read("include_usage", out.include_usage);
  options.refuse("include_obfuscation", {Json(false)}, "chunks are not padded");
  options.refuse_unknown();
  if (!options.ok()) fields.adopt(*options.error());
}

void read_seed(FieldReader& fields, std::optional<uint64_t>& out) {
  const Json* value = fields.get("seed");
  if (value == nullptr) return;
  if (!value->is_number_integer()) return fields.set_error("seed", "must be an integer");
  out = value->is_number_unsigned() ? value->get<uint64_t>() : static_cast<uint64_t>(value->get<int64_t>());
}

void read_top_k(FieldReader& fields, std::optional<int32_t>& out) {
  fields.read("top_k", out, -1, INT32_MAX);
  if (out == -1) out = 0;  // vLLM's spelling of "off"
}

void read_generation_params(FieldReader& fields, const RequestBounds& bounds, bool chat, GenerationParams& out) {
  fields.read("model", out.model, kMaxModelBytes);
  read_stream_options(fields, out);
  std::optional<int32_t> n;
  fields.read("n", n, 1, bounds.max_choices);
  out.n = n.value_or(1);
  read_max_tokens(fields, chat, out.max_tokens);
  std::optional<int32_t> min_tokens;
  fields.read("min_tokens", min_tokens, 0, kMaxTokens);
  out.min_tokens = min_tokens.value_or(0);
  if (out.max_tokens && out.min_tokens > *out.max_tokens) fields.set_error("min_tokens", "is more than max_tokens");
  read_sampling_params(fields, bounds, out);
  read_stop(fields, out.stop);
  read_token_ids(fields, "stop_token_ids", bounds.vocab_size, kMaxStopTokenIds / 2, out.stop_token_ids);
  fields.read("ignore_eos", out.ignore_eos);
  read_answer_form(fields, out.form);
  if (out.form && out.ignore_eos) fields.set_error("ignore_eos", "and " + out.form->field + " exclude each other");
  read_labels(fields);
  fields.ignore("store", "a boolean");
}

void read_chat_logprobs(FieldReader& fields, GenerationParams& out) {
  bool logprobs = false;
  fields.read("logprobs", logprobs);
  std::optional<int32_t> top;
  fields.read("top_logprobs", top, 0, kMaxTopLogprobs);
  if (top && !logprobs) return fields.set_error("top_logprobs", "needs \"logprobs\": true");
  if (logprobs) out.num_top_logprobs = top.value_or(0);
}

void refuse_chat_features(FieldReader& fields) {
  fields.refuse("functions", {Json::array()}, "use tools");
  fields.refuse("function_call", {Json("none"), Json("auto")}, "use tools and tool_choice");
  fields.refuse("modalities", {Json::array({"text"})}, "only [\"text\"] is");
  fields.refuse("audio", {}, "text only");
  fields.refuse("prediction", {}, "predicted outputs are not used");
  fields.refuse("verbosity", {}, "use the messages to ask for it");
  fields.refuse("web_search_options", {}, "there is no web search");
}

void read_template_options(FieldReader& fields, ChatRequest& out) {
  read_template_kwargs(fields, out.template_kwargs);
  fields.read("add_generation_prompt", out.add_generation_prompt);
  fields.refuse("continue_final_message", {Json(false)}, "use /v1/completions with a prompt that ends where you want");
}

void read_reasoning_effort(FieldReader& fields, std::string& out) {
  fields.read("reasoning_effort", out, 64);
  if (!out.empty() && !is_reasoning_effort(out)) {
    fields.set_error("reasoning_effort", "must be none, minimal, low, medium, high or xhigh");
  }
}

void read_messages(FieldReader& fields, ChatRequest& out) {
  const Json* value = fields.get("messages");
  if (!fields.ok()) return;
  if (value == nullptr) return fields.set_error("messages", "is required");
  auto messages = check_messages(*value);
  if (!messages) return fields.adopt(std::move(messages.error()));
  out.messages = std::move(*messages);
}

ApiExpected<ChatRequest> chat_from_object(const Json& object, const RequestBounds& bounds) {
  ChatRequest request;
  FieldReader fields(object);
  read_generation_params(fields, bounds, /*chat=*/true, request.params);
  read_chat_logprobs(fields, request.params);
  refuse_chat_features(fields);
  read_tools(fields, request.tools);
  if (request.tools.constrained() && request.params.ignore_eos) {
    fields.set_error("ignore_eos", "and calls that must keep a form exclude each other");
  }
  read_reasoning_effort(fields, request.reasoning_effort);
  read_template_options(fields, request);
  read_messages(fields, request);
  fields.refuse_unknown();
  if (!fields.ok()) return api_fail(*fields.error());
  return request;
}

// One prompt or many, each text or ids; which of the two an array is follows from its first element.
void read_prompts(FieldReader& fields, const RequestBounds& bounds, CompletionRequest& out) {
  const Json* value = fields.get("prompt");
  if (!fields.ok()) return;
  if (value == nullptr) return fields.set_error("prompt", "is required");
  const bool single = value->is_string() || (value->is_array() && !value->empty() && value->front().is_number());
  if (!single && !value->is_array()) {
    return fields.set_error("prompt", std::string("must be a string, strings, token ids or arrays of them, not ") +
                                          json_kind(*value));
  }
  const size_t count = single ? 1 : value->size();
  if (count == 0) return fields.set_error("prompt", "is empty");
  const int64_t scorers = out.lists_prompts() ? 1 : 0;
  if (static_cast<int64_t>(count) * (out.params.n + scorers) > bounds.max_sequences) {
    return fields.set_error("prompt", "asks for " + std::to_string(count) + (scorers > 0 ? " x (n + 1)" : " x n") +
                                          " sequences; at most " + std::to_string(bounds.max_sequences) +
                                          " fit the queue");
  }
  for (size_t i = 0; i < count; ++i) {
    const Json& prompt = single ? *value : (*value)[i];
    if (prompt.is_string()) {
      if (prompt.get_ref<const std::string&>().empty()) return fields.set_error("prompt", "is empty");
      out.prompts.emplace_back(prompt.get<std::string>());
    } else if (prompt.is_array() && !prompt.empty()) {
      std::vector<TokenId> ids;
      take_token_ids(fields, "prompt", prompt, bounds.vocab_size, ids);
      if (!fields.ok()) return;
      out.prompts.emplace_back(std::move(ids));
    } else {
      return fields.set_error("prompt", prompt.is_array() ? "holds an empty prompt"
                                                          : std::string("must hold strings or token ids, not ") + json_kind(prompt));
    }
  }
}

void read_completion_logprobs(FieldReader& fields, GenerationParams& out) {
  std::optional<int32_t> logprobs;
  fields.read("logprobs", logprobs, 0, kMaxTopLogprobs);
  if (logprobs) out.num_top_logprobs = *logprobs;
}

}  // namespace

void read_sampling_params(FieldReader& fields, const RequestBounds& bounds, GenerationParams& out) {
  fields.read("temperature", out.temperature, 0, 2);
  fields.read("top_p", out.top_p, 0, 1, /*lo_open=*/true);
  fields.read("min_p", out.min_p, 0, 1);
  fields.read("repetition_penalty", out.repetition_penalty, 0, 10, /*lo_open=*/true);
  fields.read("presence_penalty", out.presence_penalty, -2, 2);
  fields.read("frequency_penalty", out.frequency_penalty, -2, 2);
  read_top_k(fields, out.top_k);
  read_seed(fields, out.seed);
  read_logit_bias(fields, bounds.vocab_size, out.logit_bias);
  fields.read("cache_salt", out.cache_salt, 256);
}

bool is_reasoning_effort(std::string_view word) {
  constexpr std::string_view kKnown[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
  return std::find(std::begin(kKnown), std::end(kKnown), word) != std::end(kKnown);
}

void read_template_kwargs(FieldReader& fields, Json& out) {
  const Json* kwargs = fields.get("chat_template_kwargs");
  if (kwargs == nullptr) return;
  if (!kwargs->is_object()) return fields.set_error("chat_template_kwargs", "must be an object");
  if (text_bytes(*kwargs) > kMaxTemplateKwargsBytes) {
    return fields.set_error("chat_template_kwargs", "is larger than " + std::to_string(kMaxTemplateKwargsBytes >> 10) + " KiB");
  }
  for (const char* taken : {"messages", "tools", "add_generation_prompt"}) {
    if (kwargs->contains(taken)) return fields.set_error("chat_template_kwargs", std::string("must not set ") + taken);
  }
  out = *kwargs;
}

ApiExpected<ChatRequest> parse_chat_request(std::string_view body, const RequestBounds& bounds,
                                            const JsonLimits& limits) {
  auto object = parse_object(body, limits);
  if (!object) return api_fail(object.error());
  return chat_from_object(*object, bounds);
}

ApiExpected<CompletionRequest> parse_completion_request(std::string_view body, const RequestBounds& bounds,
                                                        const JsonLimits& limits) {
  auto object = parse_object(body, limits);
  if (!object) return api_fail(object.error());
  CompletionRequest request;
  FieldReader fields(*object);
  read_generation_params(fields, bounds, /*chat=*/false, request.params);
  read_completion_logprobs(fields, request.params);
  fields.refuse("suffix", {Json("")}, "there is no fill-in-the-middle");
  fields.refuse("best_of", {Json(request.params.n)}, "ask for n choices and rank them");
  fields.read("echo", request.echo);
  read_prompts(fields, bounds, request);
  fields.refuse_unknown();
  if (!fields.ok()) return api_fail(*fields.error());
  return request;
}

ApiExpected<TokenizeRequest> parse_tokenize_request(std::string_view body, const JsonLimits& limits) {
  auto object = parse_object(body, limits);
  if (!object) return api_fail(object.error());
  TokenizeRequest request;
  if (const auto messages = object->find("messages"); messages != object->end() && !messages->is_null()) {
    // Only the messages matter here; what else a chat request may hold is checked against bounds that refuse nothing valid.
    constexpr int32_t kAny = std::numeric_limits<int32_t>::max();
    auto chat = chat_from_object(*object, {.vocab_size = kAny, .max_choices = kAny, .max_sequences = kAny});
    if (!chat) return api_fail(chat.error());
    request.source = std::move(*chat);
    return request;
  }
  FieldReader fields(*object);
  fields.read("model", request.model, kMaxModelBytes);
  fields.ignore("messages");  // null
  std::string prompt;
  if (fields.get("prompt") == nullptr) fields.set_error("prompt", "is required");
  fields.read("prompt", prompt, kMaxPromptBytes);
  fields.read("add_special_tokens", request.add_special_tokens);
  fields.refuse_unknown();
  if (!fields.ok()) return api_fail(*fields.error());
  request.source = std::move(prompt);
  return request;
}

ApiExpected<DetokenizeRequest> parse_detokenize_request(std::string_view body, int32_t vocab_size,
                                                        const JsonLimits& limits) {
  auto object = parse_object(body, limits);
  if (!object) return api_fail(object.error());
  FieldReader fields(*object);
  DetokenizeRequest request;
  fields.read("model", request.model, kMaxModelBytes);
  if (fields.get("tokens") == nullptr) fields.set_error("tokens", "is required");
  read_token_ids(fields, "tokens", vocab_size, SIZE_MAX, request.tokens);
  fields.refuse_unknown();
  if (!fields.ok()) return api_fail(*fields.error());
  return request;
}

ApiExpected<std::string> parse_abort_request(std::string_view body, const JsonLimits& limits) {
  constexpr size_t kMaxIdBytes = 256;
  auto object = parse_object(body, limits);
  if (!object) return api_fail(object.error());
  FieldReader fields(*object);
  std::string id;
  bool all = false;
  const bool named = fields.get("request_id") != nullptr;
  fields.read("request_id", id, kMaxIdBytes);
  fields.read("all", all);
  fields.refuse_unknown();
  if (named && (all || id.empty())) fields.set_error("request_id", all ? "excludes all" : "is empty");
  if (!named && !all) fields.set_error("request_id", "is required, or say \"all\": true");
  if (!fields.ok()) return api_fail(*fields.error());
  return id;
}

}  // namespace tailrace
