// A checkpoint whose greedy output is scripted: token i is always followed by succ(i), whatever else is in the batch. Any
// other token in an answer is a row mix-up. It ignores its KV, so it tests rows and accounting, not attention.
#pragma once

#include <string>
#include <vector>

#include "base/request.h"

namespace tailrace {

// Chains of distinct tokens. A prompt that ends in trigger(s) makes the model emit script(s) and then kScriptEos for ever.
struct Scripts {
  int num_scripts = 0;
  int length = 0;  // tokens of each script, the end token not counted

  static constexpr TokenId kEos = 0;
  static constexpr TokenId kFiller = 1;  // for prompts; followed by kEos
  TokenId trigger(int script) const { return 2 + script * (length + 1); }
  std::vector<TokenId> script(int script) const;
  int vocab() const { return 2 + num_scripts * (length + 1); }
};

// One-hot embedding, zero projections, head[succ(i)] = embedding[i]: the logit of the successor is far above all others.
void write_scripted_checkpoint(const std::string& path, const Scripts& scripts);

}  // namespace tailrace
