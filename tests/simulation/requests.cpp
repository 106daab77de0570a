#include "simulation/requests.h"

#include <algorithm>

#include "base/check.h"
#include "simulation/fake_device.h"

namespace tailrace {

std::vector<TokenId> family_tokens(int32_t family, int32_t count) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(1000 + family * 100003 + i);
  return tokens;
}

std::shared_ptr<Request> make_request(std::vector<TokenId> prompt, int32_t max_tokens) {
  auto request = std::make_shared<Request>();
  request->id = next_request_id();
  request->prompt_ids = std::move(prompt);
  request->max_tokens = max_tokens;
  return request;
}

std::shared_ptr<Request> copy_of(const Request& request) {
  auto copy = std::make_shared<Request>(request);
  copy->id = next_request_id();
  copy->stream = std::make_shared<TokenStream>();
  return copy;
}

std::vector<TokenId> predict_answer(const Request& request, int32_t count) {
  uint64_t chain = chain_start(request.cache_salt);
  for (const TokenId token : request.prompt_ids) chain = chain_next(chain, token);
  std::vector<TokenId> answer;
  for (int32_t i = 0; i < count; ++i) {
    answer.push_back(
        sample_token(chain, static_cast<int32_t>(request.prompt_ids.size()) + i, request));
    chain = chain_next(chain, answer.back());
  }
  return answer;
}

void stop_at(Request& request, int32_t index) {
  request.stop_token_ids.clear();
  const std::vector<TokenId> answer = predict_answer(request, index + 1);
  CHECK(std::find(answer.begin(), answer.end() - 1, answer.back()) == answer.end() - 1);
  request.stop_token_ids = {answer.back()};
}

std::vector<TokenId> next_turn(const Request& request, const std::vector<TokenId>& answer,
                               const std::vector<TokenId>& tail) {
  std::vector<TokenId> prompt = request.prompt_ids;
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  prompt.insert(prompt.end(), tail.begin(), tail.end());
  return prompt;
}

SchedulerConfig scenario_config(int32_t num_blocks) {
  SchedulerConfig config;
  config.kv.block_size = 8;
  config.kv.groups = {{0, num_blocks + 1}};
  config.max_rows = 4;
  config.context_length = 256;
  config.max_step_tokens = 64;
  config.chunk_size = 16;
  config.max_log_patch_tokens = 1024;
  config.blocks_ahead_tokens = 0;
  return config;
}

}  // namespace tailrace
