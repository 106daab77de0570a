#include "kernels/reference/ops.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "kernels/bf16.h"
#include "kernels/kv_address.h"
#include "weights/dequantize.h"

namespace tailrace::reference {

void rms_norm(const Norm& norm, const float* x, int64_t width, float* out) {
  if (norm.weight == nullptr) {
    if (out != x) std::copy_n(x, width, out);
    return;
  }
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + norm.eps);
  for (int64_t i = 0; i < width; ++i) out[i] = static_cast<float>(x[i] * scale * norm.weight[i]);
}

void lookup(const Weight& table, int64_t index, float* out) {
  CHECK(index >= 0 && index < table.rows);
  const auto* row = static_cast<const std::byte*>(table.data) +
                    static_cast<size_t>(index) * stored_row_bytes(table.format, table.cols);
  CHECK(dequantize_row(table.format, row, table.cols, out).ok());
  if (table.scale == nullptr) return;
  const float* scale = table.scale + index * ((table.cols + table.scale_cols - 1) / table.scale_cols);
  for (int64_t k = 0; k < table.cols; ++k) out[k] *= scale[k / table.scale_cols];
}

void matmul(const Weight& weight, const float* x, int64_t tokens, float* out, int64_t out_stride, float* row) {
  for (int64_t r = 0; r < weight.rows; ++r) {
    lookup(weight, r, row);
    for (int64_t t = 0; t < tokens; ++t) {
      const float* input = x + t * weight.cols;
      double sum = weight.bias != nullptr ? weight.bias[r] : 0.0;
      for (int64_t k = 0; k < weight.cols; ++k) sum += static_cast<double>(row[k]) * input[k];
      out[t * out_stride + r] = static_cast<float>(sum);
    }
  }
}

void rope(const Rope& rope, int64_t position, float* head) {
  const int half = rope.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * rope.inv_freq[i];
    const double c = std::cos(angle) * rope.scale, s = std::sin(angle) * rope.scale;
    const float a = head[i], b = head[i + half];
    head[i] = static_cast<float>(a * c - b * s);
    head[i + half] = static_cast<float>(b * c + a * s);
  }
}

void write_kv(const KvGroupView& kv, int64_t layer, int64_t slot, int64_t position, int is_value, int64_t head,
              const float* values) {
  uint16_t* at = kv.pool + kv_offset(kv, layer, kv_block(kv, slot, position), is_value, head) +
                 position % kv.block_size * kv.head_dim;
  for (int d = 0; d < kv.head_dim; ++d) at[d] = bf16_round(values[d]);
}

void attend(const AttentionBlock& block, const KvGroupView& kv, int64_t slot, int64_t position, int64_t q_head,
            const float* q, float* out) {
  const int64_t kv_head = q_head / (block.q_heads / block.kv_heads);
  const auto vector_of = [&](int64_t key, int is_value) {
    return kv.pool + kv_offset(kv, block.layer, kv_block(kv, slot, key), is_value, kv_head) +
           key % kv.block_size * kv.head_dim;
  };
  const auto score = [&](int64_t key) {
    const uint16_t* k = vector_of(key, 0);
    double dot = 0;
    for (int d = 0; d < block.head_dim; ++d) dot += static_cast<double>(q[d]) * bf16_value(k[d]);
    dot *= block.scale;
    return block.softcap > 0 ? block.softcap * std::tanh(dot / block.softcap) : dot;
  };
  const int64_t first = block.window > 0 ? std::max<int64_t>(0, position - block.window + 1) : 0;
  double max = block.sinks != nullptr ? block.sinks[q_head] : -HUGE_VAL;
  for (int64_t key = first; key <= position; ++key) max = std::max(max, score(key));
  double denominator = block.sinks != nullptr ? std::exp(block.sinks[q_head] - max) : 0.0;
  std::array<double, 512> sums{};
  for (int64_t key = first; key <= position; ++key) {
    const double weight = std::exp(score(key) - max);
    const uint16_t* v = vector_of(key, 1);
    denominator += weight;
    for (int d = 0; d < block.head_dim; ++d) sums[static_cast<size_t>(d)] += weight * bf16_value(v[d]);
  }
  for (int d = 0; d < block.head_dim; ++d) out[d] = static_cast<float>(sums[static_cast<size_t>(d)] / denominator);
}

void route(const float* logits, int64_t experts, int64_t top_k, int32_t* ids, float* weights) {
  double sum = 0;
  for (int64_t i = 0; i < top_k; ++i) {
    ids[i] = -1;
    for (int32_t e = 0; e < experts; ++e) {
      const bool taken = std::find(ids, ids + i, e) != ids + i;
      if (!taken && (ids[i] < 0 || logits[e] > logits[ids[i]])) ids[i] = e;
    }
    sum += std::exp(static_cast<double>(logits[ids[i]]) - logits[ids[0]]);
  }
  for (int64_t i = 0; i < top_k; ++i) {
    weights[i] = static_cast<float>(std::exp(static_cast<double>(logits[ids[i]]) - logits[ids[0]]) / sum);
  }
}

float clamped_swiglu(const ClampedSwiglu& activation, float gate, float up) {
  const double limit = activation.limit, g = std::min<double>(gate, limit), u = std::clamp<double>(up, -limit, limit);
  return static_cast<float>(g / (1.0 + std::exp(-activation.alpha * g)) * (u + 1.0));
}

float activate(Activation activation, float x) {
  const double v = x;
  if (activation == Activation::kSilu) return static_cast<float>(v / (1.0 + std::exp(-v)));
  constexpr double kSqrt2OverPi = 0.7978845608028654;
  return static_cast<float>(0.5 * v * (1.0 + std::tanh(kSqrt2OverPi * (v + 0.044715 * v * v * v))));
}

float softcap(float cap, float x) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

}  // namespace tailrace::reference
