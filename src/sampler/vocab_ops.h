// The passes of sampling that touch a whole vocabulary, vectorised. NaN counts as -infinity, +infinity as the largest
// finite value, so that no input can make a result that is not a number.
#pragma once

#include <cstdint>

namespace tailrace {

// Values are summarised in blocks of this many, so that later steps look only into blocks that matter.
inline constexpr int kVocabBlock = 64;

constexpr int64_t vocab_blocks(int64_t n) { return (n + kVocabBlock - 1) / kVocabBlock; }

// NaN -> -infinity, +infinity -> largest finite.
float clean_logit(float value);

// block_max[vocab_blocks(n)] of clean values; returns the largest.
float block_maxima(const float* x, int64_t n, float* block_max);

// Lowest index among the largest clean values; 0 when all are -infinity.
int64_t argmax(const float* x, int64_t n);

// e[i] = exp((x[i] - max) * inv_temperature) and block_sum[vocab_blocks(n)]; e may be null. Returns the sum of all.
double exp_sums(const float* x, int64_t n, float max, float inv_temperature, float* e, float* block_sum);

}  // namespace tailrace
