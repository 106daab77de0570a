// What `echo` gives back of a prompt: its text and, where log probabilities are asked for, how its tokens get theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/request.h"
#include "text/tokenizer.h"

namespace tailrace {

// Tokens of all choices' prompts that one request may have listed: each is worded with up to twenty others.
inline constexpr int64_t kMaxListedPromptTokens = 32768;

struct EchoedPrompt {
  std::string text;
  // Where log probabilities are listed: the token that nothing comes before, so that it has none, and where in `text`
  // each token begins, in code points.
  TokenId first = -1;
  std::vector<int64_t> offsets;
};

// Of tokens that a tokenizer makes of `text`: one that is not in it (a BOS), or a space in front of it, takes no room.
std::vector<int64_t> token_offsets(const Tokenizer& tokenizer, std::string_view text, const std::vector<TokenId>& ids);

// Generates `prompt` from its first token: its events are the log probabilities of all others, found a decode step each
// by the kernels of answers. Null for a prompt of one token.
std::shared_ptr<const Request> prompt_scorer(const std::vector<TokenId>& prompt, int32_t num_top_logprobs,
                                             const std::string& cache_salt);

}  // namespace tailrace
