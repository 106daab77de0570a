// Request JSON: any body is either a request within its bounds, or an error with a message.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/openai_request.h"

using namespace tailrace;

namespace {

const RequestBounds kBounds{/*vocab_size=*/1000, /*max_choices=*/8, /*max_sequences=*/64};

// Written so that NaN fails.
bool within(const std::optional<float>& value, float lo, float hi) { return !value || (*value >= lo && *value <= hi); }

void check_params(const GenerationParams& params) {
  CHECK(params.n >= 1 && params.n <= kBounds.max_choices);
  CHECK(!params.max_tokens || *params.max_tokens >= 1);
  CHECK(params.min_tokens >= 0);
  CHECK(within(params.temperature, 0, 2) && within(params.top_p, 1e-45f, 1) && within(params.min_p, 0, 1));
  CHECK(within(params.repetition_penalty, 1e-45f, 10));
  CHECK(within(params.presence_penalty, -2, 2) && within(params.frequency_penalty, -2, 2));
  CHECK(params.stop.size() <= kMaxStopStrings);
  CHECK(params.logit_bias.size() <= static_cast<size_t>(kMaxLogitBias));
  for (const auto& [id, bias] : params.logit_bias) CHECK(id >= 0 && id < 1000 && bias >= -100 && bias <= 100);
  for (const TokenId id : params.stop_token_ids) CHECK(id >= 0 && id < 1000);
  CHECK(params.num_top_logprobs >= -1 && params.num_top_logprobs <= kMaxTopLogprobs);
}

template <typename T>
void check_error(const ApiExpected<T>& result) {
  if (result) return;
  CHECK(result.error().http_status == 400 && !result.error().message.empty());
  (void)dump_json(to_json(result.error()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto chat = parse_chat_request(body, kBounds);
  check_error(chat);
  if (chat) {
    check_params(chat->params);
    for (const Json& message : chat->messages) CHECK(message["content"].is_string());
  }
  const auto completion = parse_completion_request(body, kBounds);
  check_error(completion);
  if (completion) {
    check_params(completion->params);
    CHECK(!completion->prompts.empty() && completion->prompts.size() <= 64);
  }
  check_error(parse_tokenize_request(body));
  check_error(parse_detokenize_request(body, 1000));
  return 0;
}
