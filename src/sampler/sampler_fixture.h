// SamplerFixture: one row of logits with its state, for tests of the sampler.
#pragma once

#include <cmath>
#include <cstddef>
#include <map>
#include <vector>

#include "sampler/sampler.h"

namespace tailrace {

class SamplerFixture {
 public:
  explicit SamplerFixture(std::vector<float> logits)
      : logits_(std::move(logits)), scratch_(sampler_scratch_bytes(vocab()) / sizeof(std::max_align_t) + 1) {
    init_sampler_scratch(scratch_.data(), vocab());
  }

  int64_t vocab() const { return static_cast<int64_t>(logits_.size()); }

  // One token at the position after `log`.
  SampledRow sample() { return sample_at(static_cast<int32_t>(log.size())); }

  // Positions count up, as in a sequence whose logits never change: token -> times.
  std::map<TokenId, int> histogram(int draws) {
    std::map<TokenId, int> counts;
    log.assign(static_cast<size_t>(draws), 0);
    for (int i = 0; i < draws; ++i) counts[sample_at(i).id]++;
    return counts;
  }

  std::vector<float> logits_;
  std::vector<TokenId> log;
  std::vector<TokenId> bias_ids, stop_ids;
  std::vector<float> bias_values;
  std::vector<uint32_t> mask;  // empty: none
  RowSampling sampling{.temperature = 1, .top_p = 1, .min_p = 0, .repetition_penalty = 1, .presence_penalty = 0,
                       .frequency_penalty = 0, .top_k = 0, .num_top_logprobs = -1, .seed = 1, .choice_index = 0,
                       .prompt_len = 0, .num_bias = 0, .num_stop_ids = 0, .min_len = 0, .constrained = 0};

 private:
  SampledRow sample_at(int32_t log_len) {
    sampling.num_bias = static_cast<int32_t>(bias_ids.size());
    sampling.num_stop_ids = static_cast<int32_t>(stop_ids.size());
    SampledRow out{};
    sample_row({.logits = logits_.data(), .vocab = vocab(), .sampling = &sampling, .log = log.data(), .log_len = log_len,
                .bias_ids = bias_ids.data(), .bias_values = bias_values.data(), .stop_ids = stop_ids.data(), .mask = mask.empty() ? nullptr : mask.data()},
               scratch_.data(), &out);
    return out;
  }

  std::vector<std::max_align_t> scratch_;
};

// ln p, so that softmax at temperature 1 gives p back.
inline std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(p > 0 ? static_cast<float>(std::log(p)) : -HUGE_VALF);
  return logits;
}

// Pearson's chi-square of counts against expected probabilities.
inline double chi_square(const std::map<TokenId, int>& counts, const std::vector<double>& expected, int draws) {
  double statistic = 0;
  for (size_t id = 0; id < expected.size(); ++id) {
    const auto it = counts.find(static_cast<TokenId>(id));
    const double seen = it == counts.end() ? 0 : it->second, want = expected[id] * draws;
    if (want > 0) statistic += (seen - want) * (seen - want) / want;
  }
  return statistic;
}

}  // namespace tailrace
