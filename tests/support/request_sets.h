// Request sets and ways to run them that several engine tests share.
#pragma once

#include <vector>

#include "support/engine_fixture.h"

namespace tailrace {

// Greedy requests of many prompt lengths around block, window and chunk bounds, each alone in its first tokens.
std::vector<Request> plain_requests(int32_t max_tokens = 24);
// The same prompts, each with sampling inputs of its own: bans, biases, penalties, min_tokens before a stop token, other
// numbers of logprobs. What one row asks for must not touch its neighbours.
std::vector<Request> varied_requests(int32_t max_tokens = 24);
// Drawn at temperature 1, each with a seed of its own.
std::vector<Request> sampled_requests(int32_t max_tokens = 24);

// Each request alone on `engine`, one after the other, the cache dropped before each.
std::vector<Answer> run_alone(TestEngine& engine, const std::vector<Request>& requests);
// Half of the requests decode when the others and a prompt of `long_len` tokens arrive.
std::vector<Answer> run_mixed(TestEngine& engine, const std::vector<Request>& requests, int32_t long_len);

}  // namespace tailrace
