// Contract 4: "the same answer" on two paths. Greedy tokens are equal wherever the reference's top-1 margin exceeds
// twice the stated logit tolerance; at a closer margin the reference token is forced and the comparison goes on. Where
// tokens agree, so do their logprobs, within the same bound: equal tokens alone would hide a wrong but confident path.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ids/engine_client.h"

namespace tailrace {

struct SameAnswerOptions {
  double tolerance = 0.02;         // of a logit
  double max_forced_share = 0.03;  // of the compared tokens; as many logprobs may be off by more than twice the tolerance
  // Of the compared tokens: how many may differ although the reference's margin was wider. 0 unless the function itself has steps:
  // where two experts' logits are close, rounding takes another expert, and any token can follow.
  double max_outside_share = 0;
  bool sampled = false;            // drawn, not greedy: no margin is known, only the forced share is bounded
};

struct Comparison {
  int compared = 0, forced = 0;
  int outside = 0;                // forced tokens beyond the margin
  int off = 0;                   // agreeing tokens whose logprobs differ by more than twice the tolerance
  double max_logprob_error = 0;  // of the chosen token, where the tokens agree
  std::string failure;           // the first; empty if none
  std::string first_outside;     // the first token beyond the margin

  double forced_share() const { return compared > 0 ? static_cast<double>(forced) / compared : 0; }
  // "" when the answers are the same in the sense of contract 4.
  std::string verdict(const SameAnswerOptions& options) const;
};

// Runs requests in the variant's way and returns their answers in order.
using Variant = std::function<std::vector<Answer>(const std::vector<Request>&)>;

// Compares `variant` on `requests` to the answers that a reference gave (with at least 2 top logprobs when greedy). All
// requests are run again, the differing ones with their prompt continued by the reference's tokens, until all agree.
Comparison same_answer(const std::vector<Request>& requests, const std::vector<Answer>& reference,
                       const Variant& variant, const SameAnswerOptions& options = {});

}  // namespace tailrace
