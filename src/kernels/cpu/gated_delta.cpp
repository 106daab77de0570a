// The linear attention layer on the CPU: convolutions by (row, head), then the rule by (decode row, v-head) and
// (extend row, k-head) side by side.
#include "kernels/cpu/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/arena.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/step.h"

namespace tailrace::cpu {

const DeltaKernels& delta_kernels() {
  const char* isa = isa_name();
  if (std::strncmp(isa, "avx512", 6) == 0 && delta_avx512() != nullptr) return *delta_avx512();
  if (std::strncmp(isa, "portable", 8) != 0 && delta_avx2() != nullptr) return *delta_avx2();
  return *delta_portable();
}

DeltaScratch::DeltaScratch(float* base, int64_t k_dim)
    : k_t(base),
      kk(k_t + k_dim * kDeltaChunk),
      qk(kk + kDeltaChunk * kDeltaChunk),
      a(qk + kDeltaChunk * kDeltaChunk),
      p(a + kDeltaChunk * kDeltaChunk),
      k_w(p + kDeltaChunk * kDeltaChunk),
      u(k_w + k_dim * kDeltaChunk) {}

int64_t delta_scratch_floats(int64_t k_dim, int64_t v_dim) {
  return 4 * int64_t{kDeltaChunk} * kDeltaChunk + (2 * k_dim + v_dim) * kDeltaChunk + 2 * kDeltaChunk;
}

namespace {

// A recurrent layer in one step.
struct Delta {
  const Step& step;
  const GatedDeltaBlock& block;
  const DeltaKernels& kernels = delta_kernels();

  const StepScratch& s() const { return step.scratch; }
  const StatePoolView& states() const { return step.batch.states; }
  int64_t key_values() const { return int64_t{block.k_heads} * block.k_dim; }
  float* qkv(int64_t token) const { return s().delta_qkv + token * block.qkv.rows; }
  float* state(int64_t slot, int64_t v_head) const {
    const int64_t head = int64_t{block.k_dim} * block.v_dim;
    const int64_t at = (block.layer * int64_t{block.v_heads} + v_head) * head;
    return states().recurrent + slot * states().recurrent_stride + at;
  }
  float* inputs(int64_t slot) const {
    return states().conv + slot * states().conv_stride + block.layer * (block.conv_width - 1) * block.channels();
  }
};

// `rows` pieces of n floats, `stride` apart: a state's or a checkpoint's part, moved on into the row's own.
void take_state(const BatchRow& row, const float* from, float* own, int64_t rows, int64_t n, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    if (row.state_from == kZeroState) {
      std::fill_n(own + r * stride, n, 0.0f);
    } else if (from != own) {
      std::copy_n(from + r * stride, n, own + r * stride);
    }
  }
}

// Convolves channels [first, first + n) of the row's tokens and moves their inputs on.
void convolve_part(const Delta& d, const BatchRow& row, int64_t first, int64_t n, float* scratch) {
  const int width = d.block.conv_width;
  const int64_t before = width - 1, stride = d.block.channels(), q_len = row.q_len;
  float* own = d.inputs(row.slot) + first;
  take_state(row, d.inputs(state_source(d.states(), row)) + first, own, before, n, stride);
  float *weight = scratch, *old = scratch + width * n;
  for (int64_t c = 0; c < n; ++c) {
    for (int j = 0; j < width; ++j) weight[j * n + c] = d.block.conv[(first + c) * width + j];
  }
  for (int64_t j = 0; j < before; ++j) std::copy_n(own + j * stride, n, old + j * n);
  float* x = d.qkv(row.q_start) + first;
  for (int64_t j = 0; j < before; ++j) {  // of old inputs and new ones in a line, the last `before`
    const int64_t at = q_len + j;
    std::copy_n(at < before ? old + at * n : x + (at - before) * d.block.qkv.rows, n, own + j * stride);
  }
  if (const int64_t to = state_target(d.states(), row); to >= 0) {
    for (int64_t j = 0; j < before; ++j) std::copy_n(own + j * stride, n, d.inputs(to) + first + j * stride);
  }
  d.kernels.convolve(old, n, weight, width, n, q_len, x, d.block.qkv.rows);
}

// The convolution of one head's channels: heads of q, of k, then of v; q and k are normed.
void convolve_head(const Delta& d, const BatchRow& row, int64_t head, float* scratch) {
  const GatedDeltaBlock& b = d.block;
  if (head >= 2 * b.k_heads) {
    const int64_t first = 2 * d.key_values() + (head - 2 * b.k_heads) * b.v_dim;
    return convolve_part(d, row, first, b.v_dim, scratch);
  }
  const int64_t first = head * b.k_dim;
  convolve_part(d, row, first, b.k_dim, scratch);
  const float scale = head < b.k_heads ? 1.0f / std::sqrt(static_cast<float>(b.k_dim)) : 1.0f;
  for (int64_t t = row.q_start; t < row.q_start + row.q_len; ++t) d.kernels.l2_norm(scale, b.k_dim, d.qkv(t) + first);
}

// g and beta of `count` tokens of a v-head.
void decays(const Delta& d, int64_t token, int64_t count, int64_t v_head, float* g, float* beta) {
  const int64_t heads = d.block.v_heads;
  for (int64_t t = 0; t < count; ++t) {
    const float a = d.s().delta_a[(token + t) * heads + v_head] + d.block.dt_bias[v_head];
    const float b = d.s().delta_b[(token + t) * heads + v_head];
    g[t] = d.block.decay[v_head] * (a > 20.0f ? a : std::log1p(std::exp(a)));
    beta[t] = 1.0f / (1.0f + std::exp(-b));
  }
}

DeltaHead head_at(const Delta& d, const BatchRow& row, int64_t token, int64_t v_head) {
  const GatedDeltaBlock& b = d.block;
  const int64_t k_head = v_head / (b.v_heads / b.k_heads);
  const float* qkv = d.qkv(token);
  return {.q = qkv + k_head * b.k_dim,
          .k = qkv + d.key_values() + k_head * b.k_dim,
          .v = qkv + 2 * d.key_values() + v_head * b.v_dim,
          .stride = b.qkv.rows,
          .g = nullptr,
          .beta = nullptr,
          .state = d.state(row.slot, v_head),
          .out = d.s().delta_out + token * b.z.rows + v_head * b.v_dim,
          .out_stride = b.z.rows,
          .k_dim = b.k_dim,
          .v_dim = b.v_dim};
}

void take_head(const Delta& d, const BatchRow& row, int64_t v_head) {
  take_state(row, d.state(state_source(d.states(), row), v_head), d.state(row.slot, v_head), 1,
             int64_t{d.block.k_dim} * d.block.v_dim, 0);
}

void save_head(const Delta& d, const BatchRow& row, int64_t v_head) {
  const int64_t to = state_target(d.states(), row);
  if (to < 0) return;
  std::copy_n(d.state(row.slot, v_head), int64_t{d.block.k_dim} * d.block.v_dim, d.state(to, v_head));
}

// out_norm and silu(z) of a v-head's results.
void gate_outputs(const Delta& d, int64_t token, int64_t count, int64_t v_head) {
  const GatedDeltaBlock& b = d.block;
  for (int64_t t = token; t < token + count; ++t) {
    float* out = d.s().delta_out + t * b.z.rows + v_head * b.v_dim;
    d.step.ops.rms_norm(out, b.out_norm.weight, b.out_norm.eps, b.v_dim, out);
    d.step.ops.gate(Activation::kSilu, d.s().delta_z + t * b.z.rows + v_head * b.v_dim, out, b.v_dim, out);
  }
}

void decode_head(const Delta& d, const BatchRow& row, int64_t v_head) {
  float g, beta;
  take_head(d, row, v_head);
  decays(d, row.q_start, 1, v_head, &g, &beta);
  DeltaHead head = head_at(d, row, row.q_start, v_head);
  head.g = &g, head.beta = &beta;
  d.kernels.step(head);
  save_head(d, row, v_head);
  gate_outputs(d, row.q_start, 1, v_head);
}

// The v-heads of one k-head over the whole row, chunk by chunk.
void extend_heads(const Delta& d, const BatchRow& row, int64_t k_head, float* scratch) {
  const DeltaScratch room(scratch, d.block.k_dim);
  float *g = scratch + delta_scratch_floats(d.block.k_dim, d.block.v_dim) - 2 * kDeltaChunk, *beta = g + kDeltaChunk;
  const int64_t per_k_head = d.block.v_heads / d.block.k_heads, first = k_head * per_k_head;
  for (int64_t h = first; h < first + per_k_head; ++h) take_head(d, row, h);
  for (int64_t at = 0; at < row.q_len; at += kDeltaChunk) {
    const int64_t token = row.q_start + at, count = std::min<int64_t>(kDeltaChunk, row.q_len - at);
    d.kernels.chunk_keys(head_at(d, row, token, first), count, room);
    for (int64_t h = first; h < first + per_k_head; ++h) {
      decays(d, token, count, h, g, beta);
      DeltaHead head = head_at(d, row, token, h);
      head.g = g, head.beta = beta;
      d.kernels.chunk(head, count, room);
      gate_outputs(d, token, count, h);
    }
  }
  for (int64_t h = first; h < first + per_k_head; ++h) save_head(d, row, h);
}

void run_rule(const Delta& d) {
  const Batch& batch = d.step.batch;
  const int64_t decode_rows = d.step.fold_decode && batch.num_rows > batch.num_decode_rows ? 0 : batch.num_decode_rows;
  const int64_t decode_tasks = decode_rows * d.block.v_heads;
  const int64_t extend_tasks = (batch.num_rows - decode_rows) * d.block.k_heads;
  d.step.pool.parallel_for(decode_tasks + extend_tasks, [&](int64_t id, int thread) {
    if (id < extend_tasks) {  // the long ones first
      const BatchRow& row = batch.rows[decode_rows + id / d.block.k_heads];
      if (!idle(row)) extend_heads(d, row, id % d.block.k_heads, d.step.thread_floats(thread));
      return;
    }
    const BatchRow& row = batch.rows[(id - extend_tasks) / d.block.v_heads];
    if (!idle(row)) decode_head(d, row, (id - extend_tasks) % d.block.v_heads);
  });
}

}  // namespace

void run_block(const Step& step, const GatedDeltaBlock& block) {
  const Delta d{step, block};
  const StepScratch& s = step.scratch;
  const int64_t tokens = step.batch.num_tokens, heads = 2 * block.k_heads + block.v_heads;
  const Weight* weights[] = {&block.qkv, &block.z, &block.b, &block.a};
  float* outputs[] = {s.delta_qkv, s.delta_z, s.delta_b, s.delta_a};
  prepare_inputs(step, weights, 4, block.norm, s.x, block.qkv.cols, tokens);
  for_products(step, weights, 4, tokens, [&](const ProductTask& task, int) {
    run_product(step, *weights[task.index], task, outputs[task.index], weights[task.index]->rows);
  });
  step.pool.parallel_for(step.batch.num_rows * heads, [&](int64_t id, int thread) {
    const BatchRow& row = step.batch.rows[id / heads];
    if (!idle(row)) convolve_head(d, row, id % heads, step.thread_floats(thread));
  });
  run_rule(d);
  for (int32_t r = 0; r < step.batch.num_rows; ++r) {
    const BatchRow& row = step.batch.rows[r];
    if (idle(row)) std::fill_n(s.delta_out + row.q_start * block.z.rows, block.z.rows, 0.0f);
  }
  const Weight* out[] = {&block.out};
  prepare_inputs(step, out, 1, {}, s.delta_out, block.out.cols, tokens);
  add_product(step, block.out, {}, nullptr);
}

}  // namespace tailrace::cpu
