#include "server/anthropic_writer.h"

#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "server/anthropic_content.h"
#include "server/anthropic_error.h"
#include "server/http_answer.h"
#include "server/reasoning_seal.h"
#include "server/sse.h"

namespace tailrace {
namespace {

using Kind = AnswerPiece::Kind;

std::string event(const char* name, Json json) {
  Json typed = {{"type", name}};
  typed.update(json);
  return sse_event(name, typed);
}

// Every prompt is cached as it is, so none of it is counted as written to a cache.
Json usage_json(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"thinking_tokens", usage.reasoning_tokens}}},
          {"service_tier", "standard"}};
}

std::string tool_use_id(const AnswerPiece& piece) { return "toolu_" + piece.call_id; }

// A block as it begins; a piece that goes on with a call says less.
Json empty_block(const AnswerPiece& piece) {
  switch (piece.kind) {
    case Kind::kReasoning:
      return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    case Kind::kCall:
      return {{"type", "tool_use"},
              {"id", tool_use_id(piece)},
              {"name", piece.name},
              {"input", Json::object()}};
    case Kind::kContent:
      break;
  }
  return {{"type", "text"}, {"text", ""}};
}

Json block_delta(const AnswerPiece& piece) {
  switch (piece.kind) {
    case Kind::kReasoning:
      return {{"type", "thinking_delta"}, {"thinking", piece.text}};
    case Kind::kCall:
      return {{"type", "input_json_delta"}, {"partial_json", piece.text}};
    case Kind::kContent:
      break;
  }
  return {{"type", "text_delta"}, {"text", piece.text}};
}

class AnthropicWriter : public AnswerWriter {
 public:
  explicit AnthropicWriter(AnthropicAnswer answer) : answer_(std::move(answer)) {}

  std::string begin(const Usage& usage) override {
    return event("message_start", {{"message", message(Json::array(), nullptr, nullptr, usage)}}) +
           event("ping", Json::object());
  }

  std::string delta(size_t, ChoiceOutput output, const AnswerTotals*) override {
    std::string out;
    for (const auto& piece : output.delta.pieces) {
      if (!piece.speaks()) continue;
      if (!open_ || open_->kind != piece.kind || open_->call != piece.call) {
        out += close_block();
        out += event("content_block_start",
                     {{"index", num_blocks_}, {"content_block", empty_block(piece)}});
        open_ = OpenBlock{piece.kind, piece.call};
      }
      out += speak(piece);
    }
    if (output.finish_reason == nullptr) return out;
    finish_reason_ = output.finish_reason;
    stop_string_ = std::move(output.stop_string);
    return out + close_block();
  }

  std::string end(const AnswerTotals& totals) override {
    const Json delta = {{"stop_reason", stop_reason(finish_reason_, stop_string_, totals.usage)},
                        {"stop_sequence", stop_sequence(stop_string_)}};
    return event("message_delta", {{"delta", delta}, {"usage", usage_json(totals.usage)}}) +
           event("message_stop", Json::object());
  }

  std::string fail(const ApiError& error) override {
    return event("error", anthropic_error(error, answer_.request_id));
  }

  Json whole(std::vector<ChoiceOutput> choices, const AnswerTotals& totals) override {
    const ChoiceOutput& choice = choices[0];
    Json blocks = Json::array();
    for (const auto& piece : choice.delta.pieces) {
      if (piece.speaks()) blocks.push_back(whole_block(piece));
    }
    return message(std::move(blocks),
                   stop_reason(choice.finish_reason, choice.stop_string, totals.usage),
                   stop_sequence(choice.stop_string), totals.usage);
  }

  HttpResponse refusal(const ApiError& error) override { return to_response(error); }

 private:
  struct OpenBlock {
    Kind kind;
    int32_t call;
  };

  // What the open block says next; hidden thinking is kept for its signature.
  std::string speak(const AnswerPiece& piece) {
    const bool hidden = piece.kind == Kind::kReasoning && answer_.hide_thinking;
    if (hidden) hidden_ += piece.text;
    if (hidden || piece.text.empty()) return "";
    return event("content_block_delta", {{"index", num_blocks_}, {"delta", block_delta(piece)}});
  }

  std::string signature(std::string_view thinking) const {
    return answer_.hide_thinking ? seal_reasoning(thinking) : kThinkingSignature;
  }

  Json whole_block(const AnswerPiece& piece) const {
    Json block = empty_block(piece);
    if (piece.kind == Kind::kReasoning) {
      if (!answer_.hide_thinking) block["thinking"] = piece.text;
      block["signature"] = signature(piece.text);
    } else if (piece.kind == Kind::kCall) {
      auto input = parse_json(piece.text);
      CHECK_MSG(input.has_value(), "a call's arguments are no JSON");
      block["input"] = std::move(*input);
    } else {
      block["text"] = piece.text;
    }
    return block;
  }

  std::string close_block() {
    if (!open_) return "";
    const bool thinking = std::exchange(open_, std::nullopt)->kind == Kind::kReasoning;
    const Json signature = {{"type", "signature_delta"},
                            {"signature", this->signature(std::exchange(hidden_, ""))}};
    const int64_t index = num_blocks_++;
    return (thinking ? event("content_block_delta", {{"index", index}, {"delta", signature}})
                     : "") +
           event("content_block_stop", {{"index", index}});
  }

  Json stop_reason(const char* finish_reason, const std::string& stop_string,
                   const Usage& usage) const {
    if (!stop_string.empty()) return "stop_sequence";
    if (std::strcmp(finish_reason, "tool_calls") == 0) return "tool_use";
    if (std::strcmp(finish_reason, "length") != 0) return "end_turn";
    return usage.completion_tokens < answer_.max_tokens ? "model_context_window_exceeded"
                                                        : "max_tokens";
  }

  static Json stop_sequence(const std::string& stop_string) {
    return stop_string.empty() ? Json(nullptr) : Json(stop_string);
  }

  Json message(Json content, Json reason, Json stop, const Usage& usage) const {
    return {{"id", answer_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", answer_.model},
            {"content", std::move(content)},
            {"stop_reason", std::move(reason)},
            {"stop_sequence", std::move(stop)},
            {"usage", usage_json(usage)}};
  }

  const AnthropicAnswer answer_;
  std::optional<OpenBlock> open_;
  int64_t num_blocks_ = 0;  // closed ones: the open one's index
  std::string hidden_;      // of the open block
  const char* finish_reason_ = "stop";
  std::string stop_string_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_anthropic_writer(AnthropicAnswer answer) {
  return std::make_unique<AnthropicWriter>(std::move(answer));
}

}  // namespace tailrace
