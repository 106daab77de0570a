#include "server/openai_response.h"

#include <algorithm>

#include "text/detokenizer.h"

namespace tailrace {
namespace {

constexpr double kLowestLogprob = -9999.0;  // JSON has no -infinity; OpenAI sends this

double finite(float logprob) { return logprob >= kLowestLogprob ? logprob : kLowestLogprob; }

Json bytes_json(std::string_view bytes) {
  Json out = Json::array();
  for (const char byte : bytes) out.push_back(static_cast<unsigned>(static_cast<unsigned char>(byte)));
  return out;
}

// The token as text; bytes that are not UTF-8 by themselves are replaced.
std::string token_text(std::string_view bytes) {
  std::string out;
  Utf8Stream stream;
  stream.push(bytes, &out);
  stream.finish(&out);
  return out;
}

Json chat_token(const Tokenizer& tokenizer, TokenId id, float logprob) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  return {{"token", token_text(bytes)}, {"logprob", finite(logprob)}, {"bytes", bytes_json(bytes)}};
}

Json chat_logprobs(const std::vector<ListedToken>& tokens, const Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const ListedToken& token : tokens) content.push_back(token_json(token.event, tokenizer));
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The old dialect keys top_logprobs by token text; where two tokens have the same text the likelier one stays. The
// token itself is always among them, and there are none at all where none were asked for. token_bytes is an addition:
// the tokens' raw bytes.
Json completion_logprobs(const ChoicePart& part, const Tokenizer& tokenizer) {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(), raw = Json::array();
  for (const ListedToken& token : part.delta.logprobs) {
    const TokenEvent& event = token.event;
    const std::string_view bytes = tokenizer.token_bytes(event.id);
    const std::string token_name = token_text(bytes);
    tokens.push_back(token_name);
    raw.push_back(bytes_json(bytes));
    if (token.prompt_at == 0) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(finite(event.logprob));
    Json top = Json::object();
    for (const auto& entry : event.top_logprobs) {
      const std::string text = token_text(tokenizer.token_bytes(entry.id));
      if (!top.contains(text)) top[text] = finite(entry.logprob);
    }
    if (!top.contains(token_name)) top[token_name] = logprobs.back();
    tops.push_back(std::move(top));
  }
  if (part.num_top_logprobs == 0) tops = nullptr;
  return {{"tokens", std::move(tokens)}, {"token_logprobs", std::move(logprobs)}, {"top_logprobs", std::move(tops)},
          {"text_offset", part.text_offsets}, {"token_bytes", std::move(raw)}};
}

double ms_between(int64_t from_ns, int64_t to_ns) {
  return from_ns > 0 && to_ns > from_ns ? static_cast<double>(to_ns - from_ns) / 1e6 : 0.0;
}

double per_second(int64_t count, double ms) { return ms > 0 && count > 0 ? static_cast<double>(count) * 1e3 / ms : 0.0; }

}  // namespace

int64_t count_code_points(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

Json token_json(const TokenEvent& event, const Tokenizer& tokenizer) {
  Json out = chat_token(tokenizer, event.id, event.logprob);
  out["top_logprobs"] = Json::array();
  for (const auto& top : event.top_logprobs) out["top_logprobs"].push_back(chat_token(tokenizer, top.id, top.logprob));
  return out;
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

Json timings_json(const AnswerTimings& timings, const Usage& usage) {
  const double prompt_ms = ms_between(timings.admitted_ns, timings.first_token_ns);
  const double predicted_ms = ms_between(timings.first_token_ns, timings.finished_ns);
  return {{"tokenize_ms", ms_between(timings.received_ns, timings.queued_ns)},
          {"queue_ms", ms_between(timings.queued_ns, timings.admitted_ns)},
          {"prompt_n", usage.prompt_tokens - usage.cached_tokens},
          {"cache_n", usage.cached_tokens},
          {"prompt_ms", prompt_ms},
          {"prompt_per_second", per_second(usage.prompt_tokens - usage.cached_tokens, prompt_ms)},
          {"predicted_n", usage.completion_tokens},
          {"predicted_ms", predicted_ms},
          {"predicted_per_second", per_second(usage.completion_tokens - 1, predicted_ms)},
          {"gpu_idle_ms", static_cast<double>(timings.gpu_idle_us) / 1e3},
          {"preemptions", timings.preemptions}};
}

namespace {

Json call_json(const AnswerPiece& call, bool stream) {
  Json out = stream ? Json{{"index", call.call}} : Json::object();
  if (!call.call_id.empty()) {
    out["id"] = call.call_id;
    out["type"] = "function";
  }
  out["function"] = call.call_id.empty() ? Json::object() : Json{{"name", call.name}};
  out["function"]["arguments"] = call.text;
  return out;
}

// A chat choice's message, or what a chunk adds to it.
Json message_json(const ChoicePart& part, bool stream) {
  const std::string text = part.delta.text_of(AnswerPiece::Kind::kContent);
  const std::string reasoning = part.delta.text_of(AnswerPiece::Kind::kReasoning);
  const auto calls = part.delta.calls();
  Json out = stream ? Json::object() : Json{{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  if (stream && !text.empty()) out["content"] = text;
  if (!stream && text.empty() && !calls.empty()) out["content"] = nullptr;
  if (!reasoning.empty()) out["reasoning_content"] = reasoning;
  for (const auto& call : calls) out["tool_calls"].push_back(call_json(call, stream));
  return out;
}

}  // namespace

Json choice_json(ApiDialect dialect, const ChoicePart& part, const Tokenizer& tokenizer, bool stream) {
  Json choice = {{"index", part.index}};
  if (dialect == ApiDialect::kCompletion) {
    choice["text"] = part.delta.text_of(AnswerPiece::Kind::kContent);
    choice["logprobs"] = part.num_top_logprobs >= 0 ? completion_logprobs(part, tokenizer) : Json(nullptr);
  } else {
    choice[stream ? "delta" : "message"] = message_json(part, stream);
    choice["logprobs"] = part.num_top_logprobs >= 0 ? chat_logprobs(part.delta.logprobs, tokenizer) : Json(nullptr);
  }
  choice["finish_reason"] = part.finish_reason == nullptr ? Json(nullptr) : Json(part.finish_reason);
  return choice;
}

Json answer_json(const AnswerHead& head, bool stream, Json choices) {
  const char* object = head.dialect == ApiDialect::kCompletion ? "text_completion"
                       : stream                                ? "chat.completion.chunk"
                                                               : "chat.completion";
  return {{"id", head.id}, {"object", object}, {"created", head.created_s}, {"model", head.model},
          {"choices", std::move(choices)}};
}

Json role_json(int32_t index) {
  return {{"index", index},
          {"delta", {{"role", "assistant"}, {"content", ""}}},
          {"logprobs", nullptr},
          {"finish_reason", nullptr}};
}

}  // namespace tailrace
