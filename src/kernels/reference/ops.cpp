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
  const int64_t at = kv_offset(kv, layer, kv_block(kv, slot, position), is_value, head) +
                     position % kv.block_size * kv.head_dim;
  for (int d = 0; d < kv.head_dim; ++d) {
    if (kv.format == Format::kF8E4M3) {
      static_cast<uint8_t*>(kv.pool)[at + d] = std::isnan(values[d]) ? 0 : float_to_e4m3(values[d]);
    } else {
      static_cast<uint16_t*>(kv.pool)[at + d] = bf16_round(values[d]);
    }
  }
}

void attend(const AttentionBlock& block, const KvGroupView& kv, int64_t slot, int64_t position, int64_t q_head,
            const float* q, float* out) {
  const int64_t kv_head = q_head / (block.q_heads / block.kv_heads);
  const auto vector_of = [&](int64_t key, int is_value) {
    return kv_offset(kv, block.layer, kv_block(kv, slot, key), is_value, kv_head) + key % kv.block_size * kv.head_dim;
  };
  const auto stored = [&](int64_t at) {
    return kv.format == Format::kF8E4M3 ? e4m3_to_float(static_cast<const uint8_t*>(kv.pool)[at])
                                        : bf16_value(static_cast<const uint16_t*>(kv.pool)[at]);
  };
  const auto score = [&](int64_t key) {
    const int64_t k = vector_of(key, 0);
    double dot = 0;
    for (int d = 0; d < block.head_dim; ++d) dot += static_cast<double>(q[d]) * stored(k + d);
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
    const int64_t v = vector_of(key, 1);
    denominator += weight;
    for (int d = 0; d < block.head_dim; ++d) sums[static_cast<size_t>(d)] += weight * stored(v + d);
  }
  for (int d = 0; d < block.head_dim; ++d) out[d] = static_cast<float>(sums[static_cast<size_t>(d)] / denominator);
}

namespace {

double silu(double v) { return v / (1.0 + std::exp(-v)); }
double softplus(double v) { return v > 20.0 ? v : std::log1p(std::exp(v)); }

// qkv = silu(conv(earlier inputs, qkv)); the inputs move on by one.
void convolve(const GatedDeltaBlock& block, float* conv_state, float* qkv) {
  const int64_t channels = block.channels(), before = block.conv_width - 1;
  for (int64_t c = 0; c < channels; ++c) {
    const float* weight = block.conv + c * block.conv_width;
    double sum = static_cast<double>(weight[before]) * qkv[c];
    for (int64_t j = 0; j < before; ++j) sum += static_cast<double>(weight[j]) * conv_state[j * channels + c];
    for (int64_t j = 0; j + 1 < before; ++j) conv_state[j * channels + c] = conv_state[(j + 1) * channels + c];
    conv_state[(before - 1) * channels + c] = qkv[c];
    qkv[c] = static_cast<float>(silu(sum));
  }
}

void normalise(float* values, int64_t n, double scale) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(values[i]) * values[i];
  const double factor = scale / std::sqrt(squares + GatedDeltaBlock::kL2Eps);
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(values[i] * factor);
}

}  // namespace

void gated_delta(const GatedDeltaBlock& block, const DeltaToken& token, float* conv_state, float* state, float* out) {
  convolve(block, conv_state, token.qkv);
  const int64_t k_dim = block.k_dim, v_dim = block.v_dim, per_k_head = block.v_heads / block.k_heads;
  float *queries = token.qkv, *keys = queries + block.k_heads * k_dim, *values = keys + block.k_heads * k_dim;
  for (int64_t h = 0; h < block.k_heads; ++h) {
    normalise(queries + h * k_dim, k_dim, 1.0 / std::sqrt(static_cast<double>(k_dim)));
    normalise(keys + h * k_dim, k_dim, 1.0);
  }
  for (int64_t h = 0; h < block.v_heads; ++h) {
    const float *q = queries + h / per_k_head * k_dim, *k = keys + h / per_k_head * k_dim, *v = values + h * v_dim;
    const double decay = std::exp(block.decay[h] * softplus(static_cast<double>(token.a[h]) + block.dt_bias[h]));
    const double beta = 1.0 / (1.0 + std::exp(-static_cast<double>(token.b[h])));
    float *s = state + h * k_dim * v_dim, *o = out + h * v_dim;
    for (int64_t d = 0; d < v_dim; ++d) {
      double recalled = 0, result = 0;
      for (int64_t i = 0; i < k_dim; ++i) recalled += decay * s[i * v_dim + d] * k[i];
      const double update = beta * (v[d] - recalled);
      for (int64_t i = 0; i < k_dim; ++i) {
        const double now = decay * s[i * v_dim + d] + k[i] * update;
        s[i * v_dim + d] = static_cast<float>(now);
        result += now * q[i];
      }
      o[d] = static_cast<float>(result);
    }
    rms_norm(block.out_norm, o, v_dim, o);
    for (int64_t d = 0; d < v_dim; ++d) o[d] = static_cast<float>(o[d] * silu(token.z[h * v_dim + d]));
  }
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

float sigmoid(float x) { return static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(x)))); }

float activate(Activation activation, float x) {
  const double v = x;
  if (activation == Activation::kSilu) return static_cast<float>(v / (1.0 + std::exp(-v)));
  constexpr double kSqrt2OverPi = 0.7978845608028654;
  return static_cast<float>(0.5 * v * (1.0 + std::tanh(kSqrt2OverPi * (v + 0.044715 * v * v * v))));
}

float softcap(float cap, float x) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

}  // namespace tailrace::reference
