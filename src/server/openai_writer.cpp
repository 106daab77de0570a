#include "server/openai_writer.h"

#include <utility>

#include "server/http_answer.h"
#include "server/sse.h"

namespace tailrace {
namespace {

class OpenAiWriter : public AnswerWriter {
 public:
  explicit OpenAiWriter(OpenAiAnswer answer) : answer_(std::move(answer)), choices_(answer_.num_choices) {}

  std::string begin(const Usage&) override { return {}; }

  std::string delta(size_t choice, ChoiceOutput output, const AnswerTotals* totals) override {
    const bool says = !output.delta.empty() || !output.delta.logprobs.empty() || output.finish_reason != nullptr;
    std::string out;
    if (!std::exchange(choices_[choice].announced, true) && answer_.head.dialect == ApiDialect::kChat) {
      out += sse_event(chunk(Json::array({role_json(static_cast<int32_t>(choice))})));
    }
    if (!says) return out;
    Json json = chunk(Json::array({to_json(choice, std::move(output), /*stream=*/true)}));
    if (totals != nullptr && !answer_.include_usage) json["timings"] = timings_json(totals->timings, totals->usage);
    return out + sse_event(json);
  }

  std::string end(const AnswerTotals& totals) override {
    if (!answer_.include_usage) return kSseDone;
    Json last = answer_json(answer_.head, /*stream=*/true, Json::array());
    last["usage"] = usage_json(totals.usage);
    last["timings"] = timings_json(totals.timings, totals.usage);
    return sse_event(last) + kSseDone;
  }

  std::string fail(const ApiError& error) override { return sse_event(tailrace::to_json(error)) + kSseDone; }

  Json whole(std::vector<ChoiceOutput> outputs, const AnswerTotals& totals) override {
    Json choices = Json::array();
    for (size_t i = 0; i < outputs.size(); ++i) choices.push_back(to_json(i, std::move(outputs[i]), /*stream=*/false));
    Json body = answer_json(answer_.head, /*stream=*/false, std::move(choices));
    body["usage"] = usage_json(totals.usage);
    body["timings"] = timings_json(totals.timings, totals.usage);
    return body;
  }

  HttpResponse refusal(const ApiError& error) override { return to_response(error); }

 private:
  struct Choice {
    bool announced = false;  // chat: the role chunk is out
    bool begun = false;      // some of its output is
    int64_t text_offset = 0;
  };

  Json chunk(Json choices) const {
    Json out = answer_json(answer_.head, /*stream=*/true, std::move(choices));
    if (answer_.include_usage) out["usage"] = nullptr;
    return out;
  }

  Json to_json(size_t index, ChoiceOutput output, bool stream) {
    Choice& choice = choices_[index];
    const EchoedPrompt* echo = answer_.echo.empty() ? nullptr : answer_.echo[index].get();
    if (!std::exchange(choice.begun, true) && echo != nullptr) begin_with(*echo, choice, output.delta);
    ChoicePart part{.index = static_cast<int32_t>(index),
                    .delta = std::move(output.delta),
                    .finish_reason = output.finish_reason,
                    .num_top_logprobs = answer_.num_top_logprobs};
    for (const auto& token : part.delta.logprobs) {
      if (token.prompt_at >= 0) {
        part.text_offsets.push_back(echo->offsets[token.prompt_at]);
        continue;
      }
      part.text_offsets.push_back(choice.text_offset);
      choice.text_offset += count_code_points(answer_.tokenizer->token_bytes(token.event.id));
    }
    return choice_json(answer_.head.dialect, part, *answer_.tokenizer, stream);
  }

  static void begin_with(const EchoedPrompt& echo, Choice& choice, ChoiceDelta& delta) {
    delta.pieces.insert(delta.pieces.begin(), AnswerPiece{.text = echo.text});
    choice.text_offset = count_code_points(echo.text);
    if (!echo.offsets.empty()) {
      delta.logprobs.insert(delta.logprobs.begin(), ListedToken{.event = {.id = echo.first}, .prompt_at = 0});
    }
  }

  const OpenAiAnswer answer_;
  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_openai_writer(OpenAiAnswer answer) {
  return std::make_unique<OpenAiWriter>(std::move(answer));
}

}  // namespace tailrace
