#include "kernels/cpu/step.h"

#include <algorithm>
#include <cmath>

#include "base/arena.h"
#include "base/check.h"
#include "base/test_fault.h"
#include "kernels/cpu/gated_delta.h"
#include "kernels/cpu/products.h"
#include "sampler/sampler.h"

namespace tailrace::cpu {
namespace {

void add_input(StepShape& shape, const Weight& weight) {
  const InputKind kind = input_kind(weight.format);
  int64_t& bytes = shape.input_bytes_per_token[static_cast<int>(kind)];
  bytes = std::max(bytes, static_cast<int64_t>(input_bytes(kind, 1, weight.cols)));
}

Status add_moe(StepShape& shape, const MoeBlock& moe) {
  if (moe.shared_last()) return {StatusCode::kUnsupported, "moe: a shared expert among the others, not beside them"};
  add_input(shape, moe.router);
  add_input(shape, moe.gate.first);
  add_input(shape, moe.up.first);
  if (moe.dense.present()) {
    for (const Weight* weight : {&moe.dense.gate, &moe.dense.up, &moe.dense.down}) add_input(shape, *weight);
    if (moe.dense.share.rows > 0) add_input(shape, moe.dense.share);
    shape.has_dense_branch = true;
  }
  for (const ExpertWeights* experts : {&moe.gate, &moe.up, &moe.down}) {
    const InputKind kind = input_kind(experts->first.format);
    int64_t& bytes = shape.expert_input_bytes[static_cast<int>(kind)];
    bytes = std::max(bytes, static_cast<int64_t>(input_bytes(kind, 1, experts->first.cols)));
  }
  return {};
}

void add_rope(StepShape& shape, const Rope& rope) {
  if (rope.rotary_dim == 0) return;
  const auto same = [&](const Rope& r) { return r.id == rope.id; };
  if (std::none_of(shape.ropes.begin(), shape.ropes.end(), same)) shape.ropes.push_back(rope);
}

Status add_gated_delta(StepShape& shape, const GatedDeltaBlock& delta) {
  for (const Weight* weight : {&delta.qkv, &delta.z, &delta.b, &delta.a, &delta.out}) add_input(shape, *weight);
  if (delta.k_dim % 16 != 0 || delta.v_dim % 16 != 0) {
    return {StatusCode::kUnsupported, "gated_delta: heads of " + std::to_string(delta.k_dim) + " and " +
                                          std::to_string(delta.v_dim) + " dims, not both multiples of 16"};
  }
  const int64_t convolution = (2 * int64_t{delta.conv_width} - 1) * std::max(delta.k_dim, delta.v_dim);
  shape.delta_thread_floats =
      std::max({shape.delta_thread_floats, delta_scratch_floats(delta.k_dim, delta.v_dim), convolution});
  return {};
}

Status add_attention(StepShape& shape, const AttentionBlock& block) {
  if (block.group < 0 || block.group >= kMaxKvGroups) return invalid("attention: no such KV group");
  StepShape::Group& group = shape.groups[block.group];
  const StepShape::Group own{block.q_heads, block.kv_heads, block.head_dim, block.window};
  if (group.q_heads == 0) group = own;
  if (group.q_heads != own.q_heads || group.kv_heads != own.kv_heads || group.head_dim != own.head_dim ||
      group.window != own.window) {
    return invalid("attention: layers of one KV group differ in heads, head_dim or window");
  }
  shape.num_groups = std::max(shape.num_groups, block.group + 1);
  return {};
}

}  // namespace

Expected<StepShape> step_shape(const BlockList& blocks, const StepLimits& limits, const BackendOptions& options,
                               int threads) {
  if (Status status = check_blocks(blocks); !status.ok()) return fail(status);
  StepShape shape;
  shape.widths = block_widths(blocks);
  shape.limits = limits;
  shape.threads = threads;
  shape.forced_splits = options.kv_splits;
  for (const LayerBlock& block : blocks) {
    if (const auto* in = std::get_if<AttnInBlock>(&block)) {
      for (const Weight* weight : {&in->q, &in->k, &in->v, &in->gate}) {
        if (weight->rows > 0) add_input(shape, *weight);
      }
      add_rope(shape, in->rope);
    } else if (const auto* delta = std::get_if<GatedDeltaBlock>(&block)) {
      if (Status status = add_gated_delta(shape, *delta); !status.ok()) return fail(status);
    } else if (const auto* attention = std::get_if<AttentionBlock>(&block)) {
      if (Status status = add_attention(shape, *attention); !status.ok()) return fail(status);
    } else if (const auto* out = std::get_if<AttnOutBlock>(&block)) {
      add_input(shape, out->o);
      shape.has_post_norm |= out->post_norm.weight != nullptr;
    } else if (const auto* mlp = std::get_if<MlpBlock>(&block)) {
      for (const Weight* weight : {&mlp->gate, &mlp->up, &mlp->down}) add_input(shape, *weight);
      shape.has_post_norm |= mlp->post_norm.weight != nullptr || mlp->out_scale != nullptr;
    } else if (const auto* moe = std::get_if<MoeBlock>(&block)) {
      if (Status status = add_moe(shape, *moe); !status.ok()) return fail(status);
    } else if (const auto* head = std::get_if<HeadBlock>(&block)) {
      add_input(shape, head->head);
      if (head->head.rows < limits.vocab) return fail(invalid("head: fewer rows than the vocabulary"));
    }
  }
  return shape;
}

namespace {

MoeScratch take_moe(ArenaCursor& arena, const StepShape& shape) {
  const BlockWidths& w = shape.widths;
  const int64_t tokens = std::min<int64_t>(shape.limits.max_step_tokens, kMoeTokens), entries = tokens * w.taken;
  MoeScratch moe;
  moe.logits = arena.take<float>(tokens * w.experts);
  moe.weights = arena.take<float>(entries);
  moe.ids = arena.take<int32_t>(entries);
  moe.entry = arena.take<int32_t>(entries);
  moe.token = arena.take<int32_t>(entries);
  moe.first = arena.take<int32_t>(w.experts + 1);
  moe.chunks = arena.take<int32_t>(3 * (w.experts + entries / kTaskTokens));
  for (int i = 0; i < kNumInputKinds; ++i) moe.inputs[i] = arena.take<std::byte>(entries * shape.expert_input_bytes[i]);
  moe.gated = arena.take<float>(entries * w.expert_rows);
  moe.y = arena.take<float>(w.taken > 0 ? entries * w.hidden : 0);
  moe.dense = arena.take<float>(shape.has_dense_branch ? tokens * w.hidden : 0);
  moe.share = arena.take<float>(shape.has_dense_branch ? tokens : 0);
  return moe;
}

}  // namespace

StepScratch::StepScratch(void* base, const StepShape& shape) {
  ArenaCursor arena(base);
  const BlockWidths& w = shape.widths;
  const int64_t tokens = shape.limits.max_step_tokens, rows = shape.limits.max_rows;
  x = arena.take<float>(tokens * w.hidden);
  qkv = arena.take<float>(tokens * w.qkv);
  attended = arena.take<float>(tokens * w.q);
  gated = arena.take<float>(tokens * w.intermediate);
  y = arena.take<float>(shape.has_post_norm ? tokens * w.hidden : 0);
  for (int i = 0; i < kNumInputKinds; ++i) {
    inputs[i] = arena.take<std::byte>(std::max(tokens, rows) * shape.input_bytes_per_token[i]);
  }
  moe = take_moe(arena, shape);
  q_gate = arena.take<float>(tokens * w.gate);
  delta_qkv = arena.take<float>(tokens * w.delta_channels);
  for (float** values : {&delta_z, &delta_out}) *values = arena.take<float>(tokens * w.delta_values);
  for (float** values : {&delta_b, &delta_a}) *values = arena.take<float>(tokens * w.delta_heads);
  rope_stride = 0;
  for (const Rope& rope : shape.ropes) rope_stride = std::max(rope_stride, tokens * rope.rotary_dim);
  cos_sin = arena.take<float>(rope_stride * static_cast<int64_t>(shape.ropes.size()));
  token_row = arena.take<int32_t>(tokens);
  logits = arena.take<float>(rows * w.vocab);
  sampling = arena.take<int32_t>(rows);
  const int64_t entries = max_splits(rows, shape.threads, shape.forced_splits) * w.q_heads;
  partials = {arena.take<float>(entries), arena.take<float>(entries), arena.take<float>(entries * w.head_dim), 0};
  const int64_t parts = shape.threads > 1 ? int64_t{kMaxSegments} * kMaxSplitQueries * w.q_heads : 0;
  segments = {arena.take<float>(parts), arena.take<float>(parts), arena.take<float>(parts * w.head_dim), 0};
  for (int g = 0; g < kMaxKvGroups; ++g) {
    first_split[g] = arena.take<int32_t>(rows + 1);
    first_tile[g] = arena.take<int32_t>(rows + 1);
  }
  thread_stride = std::max({attention_thread_floats(w.head_dim, w.q_heads, w.gqa_ratio), kProductFloats, w.max_cols,
                            shape.delta_thread_floats});
  thread_stride = (thread_stride + 15) / 16 * 16;
  thread_floats = arena.take<float>(thread_stride * shape.threads);
  sampler_stride = static_cast<int64_t>(sampler_scratch_bytes(shape.limits.vocab));
  samplers = arena.take<std::byte>(sampler_stride * shape.threads);
  bytes = arena.bytes();
}

void begin_step(Step& step) {
  const StepScratch& s = step.scratch;
  const Batch& batch = step.batch;
  CHECK(batch.num_rows <= step.shape.limits.max_rows && batch.num_tokens <= step.shape.limits.max_step_tokens);
  for (int32_t r = 0; r < batch.num_rows; ++r) {
    std::fill_n(s.token_row + batch.rows[r].q_start, batch.rows[r].q_len, r);
  }
  for (int g = 0; g < step.shape.num_groups; ++g) {
    const StepShape::Group& group = step.shape.groups[g];
    if (group.q_heads == 0) continue;
    step.plans[g].first_split = s.first_split[g];
    step.plans[g].first_tile = s.first_tile[g];
    plan_attention(batch,
                   {.kv_heads = group.kv_heads, .gqa_ratio = group.q_heads / group.kv_heads, .window = group.window,
                    .threads = step.shape.threads, .forced_splits = step.shape.forced_splits,
                    .segment_keys = segment_keys(batch.groups[g]), .fold_decode = step.fold_decode},
                   &step.plans[g]);
  }
  for (size_t i = 0; i < step.shape.ropes.size(); ++i) {
    const Rope& rope = step.shape.ropes[i];
    const int half = rope.rotary_dim / 2;
    float* table = s.cos_sin + static_cast<int64_t>(i) * s.rope_stride;
    step.for_tokens(batch.num_tokens, int64_t{64} * half, [&](int64_t token, int) {
      const auto position = static_cast<double>(step.position(token));
      float* cos = table + token * rope.rotary_dim;
      for (int d = 0; d < half; ++d) {
        const double angle = position * rope.inv_freq[d];
        cos[d] = static_cast<float>(std::cos(angle) * rope.scale);
        cos[d + half] = static_cast<float>(std::sin(angle) * rope.scale);
      }
    });
  }
}

void sample_step(const Step& step) {
  const Batch& batch = step.batch;
  int64_t count = 0;
  for (int32_t r = 0; r < batch.num_rows; ++r) {
    if (batch.rows[r].samples) step.scratch.sampling[count++] = r;
  }
  step.pool.parallel_for(count, [&](int64_t i, int thread) {
    const int32_t r = step.scratch.sampling[i];
    const BatchRow& row = batch.rows[r];
    const float* logits = step.scratch.logits + i * step.shape.widths.vocab;
    sample_batch_row(batch, row, logits, step.shape.limits.vocab,
                     step.scratch.samplers + thread * step.scratch.sampler_stride, &batch.sampled[r]);
  });
}

}  // namespace tailrace::cpu
