// The layer blocks on the CPU, each fused into as few parallel regions as its data flow allows.
#include <algorithm>

#include "base/check.h"
#include "base/test_fault.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/step.h"
#include "kernels/kv_address.h"

namespace tailrace::cpu {

void prepare_inputs(const Step& step, const Weight* const* weights, int count, const Norm& norm, const float* x,
                    int64_t x_stride, int64_t tokens) {
  bool wanted[kNumInputKinds] = {};
  for (int i = 0; i < count; ++i) wanted[static_cast<int>(input_kind(weights[i]->format))] = true;
  const int64_t cols = weights[0]->cols;
  step.for_tokens(tokens, cols, [&](int64_t token, int thread) {
    const float* row = x + token * x_stride;
    if (norm.weight != nullptr) {
      float* normed = step.thread_floats(thread);
      step.ops.rms_norm(row, norm.weight, norm.eps, cols, normed);
      row = normed;
    }
    for (int kind = 0; kind < kNumInputKinds; ++kind) {
      if (wanted[kind]) {
        prepare_input(static_cast<InputKind>(kind), row, 0, token, token + 1, cols, step.scratch.inputs[kind]);
      }
    }
  });
}

void add_product(const Step& step, const Weight& weight, const Norm& post_norm, const float* out_scale) {
  const StepScratch& s = step.scratch;
  const int64_t hidden = weight.rows, tokens = step.batch.num_tokens;
  const Weight* weights[] = {&weight};
  if (post_norm.weight == nullptr && out_scale == nullptr) {
    for_products(step, weights, 1, tokens, [&](const ProductTask& task, int thread) {
      float* result = step.thread_floats(thread);
      run_product_local(step, weight, task, result);
      const int64_t stride = (task.tile_end - task.tile_begin) * kRowTile;
      const int64_t rows = task.row_end(weight) - task.row_begin();
      for (int64_t t = task.token_begin; t < task.token_end; ++t) {
        step.ops.add(result + (t - task.token_begin) * stride, rows, s.x + t * hidden + task.row_begin());
      }
    });
    return;
  }
  for_products(step, weights, 1, tokens,
               [&](const ProductTask& task, int) { run_product(step, weight, task, s.y, hidden); });
  step.for_tokens(tokens, hidden, [&](int64_t token, int) {
    float* y = s.y + token * hidden;
    if (post_norm.weight != nullptr) step.ops.rms_norm(y, post_norm.weight, post_norm.eps, hidden, y);
    add_scaled_sum(step, y, out_scale, hidden, s.x + token * hidden);
  });
}

void add_scaled_sum(const Step& step, const float* y, const float* out_scale, int64_t width, float* x) {
  step.ops.add(y, width, x);
  if (out_scale == nullptr) return;
  for (int64_t i = 0; i < width; ++i) x[i] *= *out_scale;
}

void gated_products(const Step& step, const Weight& gate, const Weight& up, Activation activation, int64_t tokens) {
  const Weight* weights[] = {&gate};  // its tasks compute the same rows of up
  for_products(step, weights, 1, tokens, [&](const ProductTask& task, int thread) {
    float* gate_result = step.thread_floats(thread);
    float* up_result = gate_result + kResultFloats;
    run_product_local(step, gate, task, gate_result);
    run_product_local(step, up, task, up_result);
    const int64_t stride = (task.tile_end - task.tile_begin) * kRowTile;
    const int64_t rows = task.row_end(gate) - task.row_begin();
    for (int64_t t = task.token_begin; t < task.token_end; ++t) {
      const int64_t at = (t - task.token_begin) * stride;
      step.ops.gate(activation, gate_result + at, up_result + at, rows,
                    step.scratch.gated + t * gate.rows + task.row_begin());
    }
  });
}

void run_block(const Step& step, const EmbedBlock& block) {
  const Batch& batch = step.batch;
  const int64_t hidden = block.table.cols;
  step.for_tokens(batch.num_tokens, hidden, [&](int64_t token, int) {
    const BatchRow& row = batch.rows[step.scratch.token_row[token]];
    float* x = step.scratch.x + token * hidden;
    if (idle(row)) return void(std::fill_n(x, hidden, 0.0f));
    const TokenId id = batch.state.token_log[row.slot * batch.state.log_stride + step.position(token)];
    CHECK(id >= 0 && id < block.table.rows);
    lookup_row(block.table, id, x);
    if (block.scale != 1.0f) {
      for (int64_t i = 0; i < hidden; ++i) x[i] *= block.scale;
    }
  });
}

namespace {

// Head norms, rope and the KV write of one token.
void finish_qkv(const Step& step, const AttnInBlock& block, int64_t token) {
  const StepScratch& s = step.scratch;
  const BatchRow& row = step.batch.rows[s.token_row[token]];
  if (idle(row)) return;
  const KvGroupView& kv = step.batch.groups[block.group];
  const int64_t dim = block.head_dim, position = step.position(token), slot = row.slot;
  float* q = s.qkv + token * (block.q.rows + 2 * block.k.rows);
  float* k = q + block.q.rows;
  float* v = k + block.k.rows;
  if (block.v.rows == 0) std::copy_n(k, block.k.rows, v);
  const int half = block.rope.rotary_dim / 2;
  const float* cos = nullptr;
  for (size_t i = 0; half > 0 && cos == nullptr; ++i) {
    if (step.shape.ropes[i].id == block.rope.id) {
      cos = s.cos_sin + static_cast<int64_t>(i) * s.rope_stride + token * block.rope.rotary_dim;
    }
  }
  const auto finish_head = [&](float* head, const Norm& norm) {
    if (norm.weight != nullptr) step.ops.rms_norm(head, norm.weight, norm.eps, dim, head);
    if (half > 0) step.ops.rope(head, cos, cos + half, half);
  };
  for (int h = 0; h < block.q_heads; ++h) finish_head(q + h * dim, block.q_norm);
  const int64_t kv_slot = kv_block(kv, slot, position), at = position % kv.block_size * dim;
  for (int h = 0; h < block.kv_heads; ++h) {
    finish_head(k + h * dim, block.k_norm);
    if (block.v_norm.weight != nullptr) {
      step.ops.rms_norm(v + h * dim, block.v_norm.weight, block.v_norm.eps, dim, v + h * dim);
    }
    for (const int is_value : {0, 1}) {
      const float* from = (is_value ? v : k) + h * dim;
      const int64_t to = kv_offset(kv, block.layer, kv_slot, is_value, h) + at;
      if (kv.format == Format::kF8E4M3) {
        step.ops.round_e4m3(from, dim, static_cast<uint8_t*>(kv.pool) + to);
      } else {
        step.ops.round_bf16(from, dim, static_cast<uint16_t*>(kv.pool) + to);
      }
    }
  }
}

}  // namespace

void run_block(const Step& step, const AttnInBlock& block) {
  const StepScratch& s = step.scratch;
  const int64_t tokens = step.batch.num_tokens, width = block.q.rows + 2 * block.k.rows;
  struct Product {
    const Weight& weight;
    float* out;
    int64_t stride;
  };
  const Product all[] = {{block.q, s.qkv, width},
                         {block.k, s.qkv + block.q.rows, width},
                         {block.v, s.qkv + block.q.rows + block.k.rows, width},
                         {block.gate, s.q_gate, block.gate.rows}};
  const Weight* weights[4];
  const Product* products[4];
  int count = 0;
  for (const Product& product : all) {
    if (product.weight.rows == 0) continue;
    products[count] = &product;
    weights[count++] = &product.weight;
  }
  prepare_inputs(step, weights, count, block.norm, s.x, block.q.cols, tokens);
  for_products(step, weights, count, tokens, [&](const ProductTask& task, int) {
    run_product(step, *weights[task.index], task, products[task.index]->out, products[task.index]->stride);
  });
  step.for_tokens(tokens, width, [&](int64_t token, int) { finish_qkv(step, block, token); });
}

void run_block(const Step& step, const AttentionBlock& block) {
  const StepScratch& s = step.scratch;
  const int64_t q_width = int64_t{block.q_heads} * block.head_dim;
  Partials partials = s.partials, segments = s.segments;
  partials.out_stride = test_fault(Fault::kDerivedStride) ? step.shape.groups[0].head_dim : block.head_dim;
  segments.out_stride = block.head_dim;
  run_attention(step.pool, step.attention, step.plans[block.group],
                {.rows = step.batch.rows, .kv = step.batch.groups[block.group], .layer = block.layer,
                 .q_heads = block.q_heads, .kv_heads = block.kv_heads, .head_dim = block.head_dim,
                 .window = block.window, .scale = block.scale, .softcap = block.softcap, .sinks = block.sinks,
                 .q = s.qkv, .q_stride = q_width + int64_t{2} * block.kv_heads * block.head_dim, .out = s.attended,
                 .out_stride = q_width},
                partials, segments, s.thread_floats, s.thread_stride);
  for (int32_t r = 0; r < step.batch.num_decode_rows; ++r) {
    const BatchRow& row = step.batch.rows[r];
    if (idle(row)) std::fill_n(s.attended + row.q_start * q_width, q_width, 0.0f);
  }
}

void run_block(const Step& step, const AttnOutBlock& block) {
  const StepScratch& s = step.scratch;
  const int64_t width = block.o.cols;
  if (block.gated) {
    step.for_tokens(step.batch.num_tokens, width, [&](int64_t token, int) {
      step.ops.gate_sigmoid(s.q_gate + token * width, width, s.attended + token * width);
    });
  }
  const Weight* weights[] = {&block.o};
  prepare_inputs(step, weights, 1, {}, step.scratch.attended, block.o.cols, step.batch.num_tokens);
  add_product(step, block.o, block.post_norm);
}

void run_block(const Step& step, const MlpBlock& block) {
  const StepScratch& s = step.scratch;
  const int64_t tokens = step.batch.num_tokens, intermediate = block.gate.rows;
  const Weight* inputs[] = {&block.gate, &block.up};
  prepare_inputs(step, inputs, 2, block.norm, s.x, block.gate.cols, tokens);
  gated_products(step, block.gate, block.up, block.activation, tokens);
  const Weight* down[] = {&block.down};
  prepare_inputs(step, down, 1, {}, s.gated, intermediate, tokens);
  add_product(step, block.down, block.post_norm, block.out_scale);
}

void run_block(const Step& step, const HeadBlock& block) {
  const StepScratch& s = step.scratch;
  const Batch& batch = step.batch;
  const int64_t hidden = block.head.cols, vocab = block.head.rows;
  // The residual rows that sample move to the front: each comes from its own place or from behind it.
  int64_t count = 0;
  for (int32_t r = 0; r < batch.num_rows; ++r) {
    if (!batch.rows[r].samples) continue;
    const int64_t last = batch.rows[r].q_start + batch.rows[r].q_len - 1;
    if (last != count) std::copy_n(s.x + last * hidden, hidden, s.x + count * hidden);
    ++count;
  }
  const Weight* weights[] = {&block.head};
  prepare_inputs(step, weights, 1, block.norm, s.x, hidden, count);
  for_products(step, weights, 1, count, [&](const ProductTask& task, int) {
    run_product(step, block.head, task, s.logits, vocab);
    if (block.softcap == 0) return;
    const int64_t rows = task.row_end(block.head) - task.row_begin();
    for (int64_t i = task.token_begin; i < task.token_end; ++i) {
      step.ops.softcap(block.softcap, rows, s.logits + i * vocab + task.row_begin());
    }
  });
}

}  // namespace tailrace::cpu
