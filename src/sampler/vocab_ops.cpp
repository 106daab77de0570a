#include "sampler/vocab_ops.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

// One body, compiled for each instruction set by inlining it into functions that allow it.
#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace tailrace {
namespace {

constexpr int kLanes = 16;
constexpr float kLowest = -HUGE_VALF;

ALWAYS_INLINE float clean(float x) {
  const float finite = x < FLT_MAX ? x : FLT_MAX;  // NaN compares false: it becomes FLT_MAX, then is replaced
  return x == x ? finite : kLowest;
}

// exp for x <= 0, relative error 2e-7; 0 below -87. Range reduction by powers of two, then Cephes' polynomial.
ALWAYS_INLINE float exp_nonpositive(float x) {
  const float clamped = x > -87.0f ? x : -87.0f;
  const float k = __builtin_floorf(clamped * 1.44269504f + 0.5f);
  const float r = (clamped - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const float scale = std::bit_cast<float>((static_cast<int32_t>(k) + 127) << 23);
  return x > -87.0f ? p * scale : 0.0f;
}

ALWAYS_INLINE float block_max_body(const float* x) {
  float lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = kLowest;
  for (int i = 0; i < kVocabBlock; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  }
  float best = lanes[0];
  for (int l = 1; l < kLanes; ++l) best = lanes[l] > best ? lanes[l] : best;
  return best < FLT_MAX ? best : FLT_MAX;
}

ALWAYS_INLINE void block_maxima_body(const float* x, int64_t blocks, float* block_max) {
  for (int64_t b = 0; b < blocks; ++b) block_max[b] = block_max_body(x + b * kVocabBlock);
}

ALWAYS_INLINE void exp_body(const float* x, int64_t blocks, float max, float inv_t, float* e, float* block_sum) {
  for (int64_t b = 0; b < blocks; ++b) {
    const float* in = x + b * kVocabBlock;
    float values[kVocabBlock];
    for (int i = 0; i < kVocabBlock; ++i) values[i] = exp_nonpositive((clean(in[i]) - max) * inv_t);
    float lanes[kLanes] = {};
    for (int i = 0; i < kVocabBlock; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) lanes[l] += values[i + l];
    }
    float sum = 0;
    for (int l = 0; l < kLanes; ++l) sum += lanes[l];
    block_sum[b] = sum;
    if (e != nullptr) std::copy_n(values, kVocabBlock, e + b * kVocabBlock);
  }
}

using MaximaFn = void (*)(const float*, int64_t, float*);
using ExpFn = void (*)(const float*, int64_t, float, float, float*, float*);

void maxima_portable(const float* x, int64_t n, float* out) { block_maxima_body(x, n, out); }
void exp_portable(const float* x, int64_t n, float m, float t, float* e, float* s) { exp_body(x, n, m, t, e, s); }

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma")))
AVX2 void maxima_avx2(const float* x, int64_t n, float* out) { block_maxima_body(x, n, out); }
AVX2 void exp_avx2(const float* x, int64_t n, float m, float t, float* e, float* s) { exp_body(x, n, m, t, e, s); }
#endif

struct VocabOps {
  MaximaFn maxima = maxima_portable;
  ExpFn exp = exp_portable;
};

VocabOps choose_ops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {maxima_avx2, exp_avx2};
#endif
  return {};
}

const VocabOps& ops() {
  static const VocabOps chosen = choose_ops();
  return chosen;
}

}  // namespace

float clean_logit(float value) { return clean(value); }

float block_maxima(const float* x, int64_t n, float* block_max) {
  const int64_t whole = n / kVocabBlock;
  ops().maxima(x, whole, block_max);
  if (whole < vocab_blocks(n)) {
    float tail = kLowest;
    for (int64_t i = whole * kVocabBlock; i < n; ++i) tail = std::max(tail, clean(x[i]));
    block_max[whole] = tail;
  }
  float best = kLowest;
  for (int64_t b = 0; b < vocab_blocks(n); ++b) best = std::max(best, block_max[b]);
  return best;
}

int64_t argmax(const float* x, int64_t n) {
  constexpr int64_t kGroup = 64;  // blocks whose maxima are held at a time
  float maxima[kGroup];
  float best = kLowest;
  int64_t best_begin = 0, best_end = 0;
  for (int64_t begin = 0; begin < n; begin += kGroup * kVocabBlock) {
    const int64_t end = std::min(n, begin + kGroup * kVocabBlock);
    const float group_max = block_maxima(x + begin, end - begin, maxima);
    if (group_max > best) {
      best = group_max;
      best_begin = begin;
      best_end = end;
    }
  }
  for (int64_t i = best_begin; i < best_end; ++i) {
    if (clean(x[i]) == best) return i;
  }
  return 0;
}

double exp_sums(const float* x, int64_t n, float max, float inv_temperature, float* e, float* block_sum) {
  const int64_t whole = n / kVocabBlock;
  ops().exp(x, whole, max, inv_temperature, e, block_sum);
  if (whole < vocab_blocks(n)) {
    float tail = 0;
    for (int64_t i = whole * kVocabBlock; i < n; ++i) {
      const float value = exp_nonpositive((clean(x[i]) - max) * inv_temperature);
      if (e != nullptr) e[i] = value;
      tail += value;
    }
    block_sum[whole] = tail;
  }
  double sum = 0;
  for (int64_t b = 0; b < vocab_blocks(n); ++b) sum += block_sum[b];
  return sum;
}

}  // namespace tailrace
