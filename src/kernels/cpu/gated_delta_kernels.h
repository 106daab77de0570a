// The gated delta rule's kernels, written once over the vectors of vector_types.h, compiled for each instruction set.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/gated_delta.h"
#include "kernels/cpu/token_kernels.h"

namespace tailrace::cpu {
namespace {

void convolve(const float* before, int64_t before_stride, const float* weight, int width, int64_t n, int64_t tokens,
              float* x, int64_t stride) {
  for (int64_t t = tokens - 1; t >= 0; --t) {
    float* now = x + t * stride;
    for (int64_t c = 0; c < n; c += W) {
      V sum{};
      for (int j = 0; j < width; ++j) {
        const int64_t from = t - (width - 1) + j;
        const float* input = from >= 0 ? x + from * stride : before + (from + width - 1) * before_stride;
        sum += load(weight + j * n + c) * load(input + c);
      }
      store(now + c, sum * sigmoid(sum));
    }
  }
}

void l2_norm(float scale, int64_t n, float* x) {
  V sum{};
  for (int64_t i = 0; i < n; i += W) sum += load(x + i) * load(x + i);
  const float factor = scale / std::sqrt(sum_lanes(sum) + GatedDeltaBlock::kL2Eps);
  for (int64_t i = 0; i < n; i += W) store(x + i, load(x + i) * factor);
}

// Calls f.template operator()<vectors>(first) for pieces of n values, four vectors at a time.
template <typename F>
INLINE void for_pieces(int64_t n, const F& f) {
  int64_t at = 0;
  for (; at + 4 * W <= n; at += 4 * W) f.template operator()<4>(at);
  for (; at < n; at += W) f.template operator()<1>(at);
}

void delta_step(const DeltaHead& head) {
  const float decay = std::exp(head.g[0]), beta = head.beta[0];
  const int64_t v_dim = head.v_dim;
  for_pieces(v_dim, [&]<int N>(int64_t first) {
    V recalled[N] = {}, out[N] = {};
    float* s = head.state + first;
    for (int64_t i = 0; i < head.k_dim; ++i) {
      UNROLL for (int j = 0; j < N; ++j) recalled[j] += load(s + i * v_dim + j * W) * head.k[i];
    }
    UNROLL for (int j = 0; j < N; ++j) recalled[j] = beta * (load(head.v + first + j * W) - decay * recalled[j]);
    for (int64_t i = 0; i < head.k_dim; ++i) {
      UNROLL for (int j = 0; j < N; ++j) {
        const V now = decay * load(s + i * v_dim + j * W) + head.k[i] * recalled[j];
        store(s + i * v_dim + j * W, now);
        out[j] += now * head.q[i];
      }
    }
    UNROLL for (int j = 0; j < N; ++j) store(head.out + first + j * W, out[j]);
  });
}

// out = keep * out + A B for M rows: A [M, depth] (a_stride), B [depth, n] (b_stride); n a multiple of W.
template <int M>
INLINE void multiply_rows(int64_t n, int64_t depth, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                          float keep, float* out, int64_t out_stride) {
  const auto piece = [&]<int N>(int64_t first) {
    V sums[M][N] = {};
    for (int64_t d = 0; d < depth; ++d) {
      V row[N];
      UNROLL for (int j = 0; j < N; ++j) row[j] = load(b + d * b_stride + first + j * W);
      UNROLL for (int m = 0; m < M; ++m) {
        UNROLL for (int j = 0; j < N; ++j) sums[m][j] += a[m * a_stride + d] * row[j];
      }
    }
    UNROLL for (int m = 0; m < M; ++m) {
      UNROLL for (int j = 0; j < N; ++j) {
        float* at = out + m * out_stride + first + j * W;
        store(at, keep == 0.0f ? sums[m][j] : keep * load(at) + sums[m][j]);
      }
    }
  };
  int64_t first = 0;
  for (; first + 2 * W <= n; first += 2 * W) piece.template operator()<2>(first);
  for (; first < n; first += W) piece.template operator()<1>(first);
}

constexpr int64_t kRows = 4;  // of a product's tile

void multiply(int64_t rows, int64_t n, int64_t depth, const float* a, int64_t a_stride, const float* b,
              int64_t b_stride, float keep, float* out, int64_t out_stride) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    multiply_rows<kRows>(n, depth, a + r * a_stride, a_stride, b, b_stride, keep, out + r * out_stride, out_stride);
  }
  for (; r < rows; ++r) {
    multiply_rows<1>(n, depth, a + r * a_stride, a_stride, b, b_stride, keep, out + r * out_stride, out_stride);
  }
}

void delta_chunk_keys(const DeltaHead& head, int64_t tokens, const DeltaScratch& s) {
  constexpr int64_t C = kDeltaChunk;
  for (int64_t i = 0; i < head.k_dim; ++i) {
    for (int64_t t = 0; t < tokens; ++t) s.k_t[i * C + t] = head.k[t * head.stride + i];
    std::fill(s.k_t + i * C + tokens, s.k_t + (i + 1) * C, 0.0f);
  }
  for (int64_t t = 0; t < tokens; t += kRows) {  // below and on the diagonal
    const int64_t rows = std::min(kRows, tokens - t), n = (t + rows + W - 1) / W * W;
    multiply(rows, n, head.k_dim, head.k + t * head.stride, head.stride, s.k_t, C, 0.0f, s.kk + t * C, C);
    multiply(rows, n, head.k_dim, head.q + t * head.stride, head.stride, s.k_t, C, 0.0f, s.qk + t * C, C);
  }
}

// a = -beta kk D strictly below the diagonal, p = qk D on it and below, zeros above; k_w = k^T e^(G_last - G).
INLINE void delta_weights(const DeltaHead& head, int64_t tokens, const float* sums, const DeltaScratch& s) {
  constexpr int64_t C = kDeltaChunk;
  VI lane{};
  for (int i = 0; i < W; ++i) lane[i] = i;
  for (int64_t i = 0; i < tokens; ++i) {
    for (int64_t j = 0; j < C; j += W) {
      const VI column = lane + static_cast<int32_t>(j);
      const V decay = clamped_exp2((sums[i] - load(sums + j)) * kLog2e);
      const V below = column < static_cast<int32_t>(i) ? load(s.kk + i * C + j) : V{};
      const V until = column <= static_cast<int32_t>(i) ? load(s.qk + i * C + j) : V{};
      store(s.a + i * C + j, -head.beta[i] * (below * decay));
      store(s.p + i * C + j, until * decay);
    }
  }
  alignas(64) float late[C] = {};
  for (int64_t t = 0; t < tokens; ++t) late[t] = std::exp(sums[tokens - 1] - sums[t]);
  for (int64_t i = 0; i < head.k_dim; ++i) map2(s.k_t + i * C, late, C, s.k_w + i * C, [](V k, V w) { return k * w; });
}

void delta_chunk(const DeltaHead& head, int64_t tokens, const DeltaScratch& s) {
  constexpr int64_t C = kDeltaChunk;
  const int64_t v_dim = head.v_dim;
  alignas(64) float sums[C] = {};
  for (int64_t t = 0; t < tokens; ++t) sums[t] = head.g[t] + (t > 0 ? sums[t - 1] : 0.0f);
  std::fill(sums + tokens, sums + C, sums[tokens - 1]);
  delta_weights(head, tokens, sums, s);

  multiply(tokens, v_dim, head.k_dim, head.k, head.stride, head.state, v_dim, 0.0f, s.u, v_dim);
  for (int64_t t = 0; t < tokens; ++t) {
    const float before = std::exp(sums[t]), beta = head.beta[t];
    map2(head.v + t * head.stride, s.u + t * v_dim, v_dim, s.u + t * v_dim,
         [&](V v, V recalled) { return beta * (v - before * recalled); });
  }
  for (int64_t t = 0; t < tokens; ++t) {  // whole tiles of rows, then what they have within their own
    if (t % kRows == 0) {
      multiply(std::min(kRows, tokens - t), v_dim, t, s.a + t * C, C, s.u, v_dim, 1.0f, s.u + t * v_dim, v_dim);
    }
    const int64_t own = t / kRows * kRows;
    multiply(1, v_dim, t - own, s.a + t * C + own, C, s.u + own * v_dim, v_dim, 1.0f, s.u + t * v_dim, v_dim);
  }
  for (int64_t t = 0; t < tokens; t += kRows) {
    const int64_t rows = std::min(kRows, tokens - t);
    float* out = head.out + t * head.out_stride;
    multiply(rows, v_dim, head.k_dim, head.q + t * head.stride, head.stride, head.state, v_dim, 0.0f, out,
             head.out_stride);
    for (int64_t r = 0; r < rows; ++r) {
      const float before = std::exp(sums[t + r]);
      float* at = out + r * head.out_stride;
      map2(at, at, v_dim, at, [&](V o, V) { return before * o; });
    }
    multiply(rows, v_dim, t + rows, s.p + t * C, C, s.u, v_dim, 1.0f, out, head.out_stride);
  }
  multiply(head.k_dim, v_dim, tokens, s.k_w, C, s.u, v_dim, std::exp(sums[tokens - 1]), head.state, v_dim);
}

}  // namespace
}  // namespace tailrace::cpu
