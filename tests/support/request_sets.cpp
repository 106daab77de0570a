#include "support/request_sets.h"

namespace tailrace {
namespace {

constexpr int32_t kPromptLens[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 97, 129, 200};

}  // namespace

std::vector<Request> plain_requests(int32_t max_tokens) {
  std::vector<Request> requests;
  for (int32_t length : kPromptLens) requests.push_back(greedy_request(random_prompt(length, length), max_tokens));
  return requests;
}

std::vector<Request> varied_requests(int32_t max_tokens) {
  std::vector<Request> requests = plain_requests(max_tokens);
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& sampling = requests[i].sampling;
    sampling.num_top_logprobs = i % 3 == 0 ? kMaxTopLogprobs : 2 + static_cast<int32_t>(i);
    if (i % 4 == 1) {
      for (TokenId id = static_cast<TokenId>(i % 3); id < 256; id += 3) sampling.logit_bias.push_back({id, -100.0f});
      sampling.num_top_logprobs = kMaxTopLogprobs;
    }
    if (i % 4 == 2) sampling.frequency_penalty = 1.5f;
    if (i % 8 == 6) sampling.presence_penalty = 1.0f;
    if (i % 4 == 3) {  // every third id ends the answer, but not before 5 tokens
      for (TokenId id = 0; id < 3 * kMaxStopTokenIds; id += 3) requests[i].stop_token_ids.push_back(id);
      requests[i].min_tokens = 5;
      sampling.num_top_logprobs = kMaxTopLogprobs;
    }
  }
  return requests;
}

std::vector<Request> sampled_requests(int32_t max_tokens) {
  std::vector<Request> requests = plain_requests(max_tokens);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.temperature = 1.0f;
    requests[i].sampling.seed = 1000 + i;
    if (i % 3 == 1) requests[i].sampling.top_k = 20;
    if (i % 3 == 2) requests[i].sampling.top_p = 0.9f;
  }
  return requests;
}

std::vector<Answer> run_alone(TestEngine& engine, const std::vector<Request>& requests) {
  std::vector<Answer> answers;
  for (const Request& request : requests) {
    engine.flush_cache();
    answers.push_back(engine.wait(*engine.submit(request)));
  }
  return answers;
}

std::vector<Answer> run_mixed(TestEngine& engine, const std::vector<Request>& requests, int32_t long_len) {
  std::vector<std::shared_ptr<const Request>> submitted(requests.size());
  for (size_t i = 0; i < requests.size(); i += 2) submitted[i] = engine.submit(requests[i]);
  for (size_t i = 0; i < requests.size(); i += 2) engine.wait(*submitted[i], 1);
  const auto big = engine.submit(greedy_request(random_prompt(4711, long_len), 2));
  for (size_t i = 1; i < requests.size(); i += 2) submitted[i] = engine.submit(requests[i]);
  std::vector<Answer> answers;
  for (const auto& request : submitted) answers.push_back(engine.wait(*request));
  engine.wait(*big);
  return answers;
}

}  // namespace tailrace
