#include "kernels/cuda/cuda_blocks.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/linear_wide.h"
#include "kernels/cuda/token_ops.h"

namespace tailrace::cuda {

CudaBlocks::~CudaBlocks() {
  for (cudaEvent_t event : {fork_, join_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (side_ != nullptr) cudaStreamDestroy(side_);
}

Status CudaBlocks::prepare(const BlockList& blocks, const CudaShape& shape, const CudaScratch& scratch,
                           ExpertCounter* counters) {
  blocks_ = &blocks, shape_ = &shape, scratch_ = &scratch;
  for (int g = 0; g < shape.num_groups; ++g) CUDA_CHECK(shape.attention->prepare(shape.groups[g].head_dim));
  CUDA_CHECK(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking));
  for (cudaEvent_t* event : {&fork_, &join_}) CUDA_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  if (shape.widths.delta_heads > 0) CUDA_CHECK(prepare_delta());
  if (shape.widths.experts > 0) experts_.prepare(scratch.experts, num_sms_, counters);
  return products_.prepare(blocks, shape, scratch);
}

void CudaBlocks::queue(const StepShape& step, cudaStream_t stream) {
  for (int g = 0; g < shape_->num_groups; ++g) {
    attention_index_[g] = 0;
    if (step.num_decode_rows == 0) continue;
    const KvGroupView& kv = binding_.batch.groups[g];
    plan_decode(scratch_->groups[g].plan, binding_.targets.rows, step.num_decode_rows, kv.block_table, kv.table_stride,
                shape_->groups[g].kv_heads, shape_->groups[g].window, shape_->groups[g].decode_ctas, options_.kv_splits,
                decode_tuning(step, g), stream);
  }
  for (size_t i = 0; i < blocks_->size(); ++i) {
    std::visit([&](const auto& block) { run(block, step, i, stream); }, (*blocks_)[i]);
  }
}

// ---- Norms -------------------------------------------------------------------------------------------------------

NextNorm CudaBlocks::next_norm(size_t index, const StepShape& step, XOrder* order) const {
  const auto prepared = [&](const Norm& norm, CudaProducts::Weights weights) -> NextNorm {
    if (!CudaProducts::own(weights, step.num_tokens)) return {};
    if (order != nullptr) *order = CudaProducts::order_for(weights, step.num_tokens);
    return {norm.weight, scratch_->normed, scratch_->squares};
  };
  for (++index; index < blocks_->size(); ++index) {
    const LayerBlock& block = (*blocks_)[index];
    if (const auto* in = std::get_if<AttnInBlock>(&block)) {
      if (in->v.rows == 0) return prepared(in->norm, {&in->q, &in->k});
      return in->gate.rows > 0 ? prepared(in->norm, {&in->q, &in->k, &in->v, &in->gate})
                               : prepared(in->norm, {&in->q, &in->k, &in->v});
    }
    if (const auto* delta = std::get_if<GatedDeltaBlock>(&block)) {
      return prepared(delta->norm, {&delta->qkv, &delta->z, &delta->b, &delta->a});
    }
    if (const auto* mlp = std::get_if<MlpBlock>(&block)) return prepared(mlp->norm, {&mlp->gate, &mlp->up});
    if (const auto* moe = std::get_if<MoeBlock>(&block)) {
      if (order != nullptr) *order = XOrder::kBf16;
      if (step.num_tokens > kMostWideTokens) return {};  // no room for their sums
      return {moe->norm.weight, scratch_->normed, scratch_->squares};
    }
    if (const auto* head = std::get_if<HeadBlock>(&block)) {
      // Only where every token is its row's last.
      return step.num_rows == step.num_tokens ? prepared(head->norm, {&head->head}) : NextNorm{};
    }
  }
  return {};
}

void CudaBlocks::normalise(const Norm& norm, int64_t hidden, const StepShape& step, XOrder order, __nv_bfloat16* out,
                           cudaStream_t stream) {
  CUDA_CHECK(rms_norm(scratch_->x, step.num_tokens, static_cast<int>(hidden), norm.weight, norm.eps, order, out, stream));
}

XOrder CudaBlocks::take_normed(LinearParams& params, const Norm& norm, int64_t hidden, const StepShape& step,
                               __nv_bfloat16* normed, cudaStream_t stream) {
  params.x = normed;
  if (prepared_ && normed == scratch_->normed) {
    params.squares = scratch_->squares, params.num_squares = num_squares_, params.eps = norm.eps;
    return prepared_order_;
  }
  normalise(norm, hidden, step, XOrder::kBf16, normed, stream);
  return XOrder::kBf16;
}

// ---- Embedding and attention -------------------------------------------------------------------------------------

void CudaBlocks::run(const EmbedBlock& block, const StepShape& step, size_t index, cudaStream_t stream) {
  const NextNorm next = next_norm(index, step);
  CUDA_CHECK(
      embed(rows_of(step), binding_.batch.state, matrix_of(block.table), block.scale, scratch_->x, next, stream));
  prepared_ = next.next != nullptr, prepared_order_ = XOrder::kBf16, num_squares_ = 1;
}

bool CudaBlocks::project(CudaProducts::Weights weights, const Norm& norm, float* out, const StepShape& step,
                         cudaStream_t stream) {
  const int64_t hidden = (*weights.begin())->cols;
  int64_t stride = 0;
  for (const Weight* w : weights) stride += w->rows;
  if (!CudaProducts::own(weights, step.num_tokens)) {
    const XOrder order = CudaProducts::library_order(weights);
    normalise(norm, hidden, step, order, scratch_->normed, stream);
    for (const Weight* w : weights) {
      products_.run_library({.w = *w, .x = scratch_->normed, .order = order, .tokens = step.num_tokens, .out = out,
                             .out_stride = stride}, stream);
      out += w->rows;
    }
    return false;
  }
  LinearParams p{.matrix = {}, .num_matrices = 0, .tokens = step.num_tokens, .out = out, .out_stride = stride};
  for (const Weight* w : weights) p.matrix[p.num_matrices++] = matrix_of(*w);
  const XOrder order = take_normed(p, norm, hidden, step, scratch_->normed, stream);
  if (matrices_unsupported(p) == nullptr) {
    products_.run_own(p, order, stream);
    return true;
  }
  p.num_matrices = 1;  // formats differ (K quants keep v in more bits)
  for (const Weight* w : weights) {
    p.matrix[0] = matrix_of(*w);
    products_.run_own(p, order, stream);
    p.out += w->rows;
  }
  return true;
}

void* CudaBlocks::pool_of(int group, int layer) const {
  const KvGroupView& kv = binding_.batch.groups[group];
  const int64_t at = kv_tile_offset(kv.num_blocks, kv.kv_heads, padded_dim(kv.head_dim), layer, 0, 0);
  return static_cast<std::byte*>(kv.pool) + at * format_traits(kv.format).block_bytes;
}

void CudaBlocks::run(const AttnInBlock& b, const StepShape& step, size_t, cudaStream_t stream) {
  const bool own_values = b.v.rows > 0;
  const bool biased = own_values ? project({&b.q, &b.k, &b.v}, b.norm, scratch_->qkv, step, stream)
                                 : project({&b.q, &b.k}, b.norm, scratch_->qkv, step, stream);
  if (b.gate.rows > 0) project({&b.gate}, b.norm, scratch_->attention_gate, step, stream);
  const KvGroupView& kv = binding_.batch.groups[b.group];
  CUDA_CHECK(finish_qkv(rows_of(step),
                        {.qkv = scratch_->qkv,
                         .keys_are_values = !own_values,
                         .q_bias = biased ? nullptr : b.q.bias,
                         .k_bias = biased ? nullptr : b.k.bias,
                         .v_bias = biased ? nullptr : own_values ? b.v.bias : b.k.bias,
                         .q_norm = b.q_norm.weight,
                         .k_norm = b.k_norm.weight,
                         .v_norm = b.v_norm.weight,
                         .q_eps = b.q_norm.eps,
                         .k_eps = b.k_norm.eps,
                         .v_eps = b.v_norm.eps,
                         .inv_freq = b.rope.inv_freq,
                         .rotary_dim = b.rope.rotary_dim,
                         .rope_scale = b.rope.scale,
                         .q_heads = b.q_heads,
                         .kv_heads = b.kv_heads,
                         .head_dim = b.head_dim,
                         .q = scratch_->q,
                         .pool = pool_of(b.group, b.layer),
                         .fp8 = kv.format == Format::kF8E4M3,
                         .block_table = kv.block_table,
                         .table_stride = kv.table_stride},
                        stream));
}

// Beside extend, decode's first CTAs are in place before it fills the GPU, which is why extend waits for the fork; the others follow
// extend's on its stream.
void CudaBlocks::run(const AttentionBlock& b, const StepShape& step, size_t, cudaStream_t stream) {
  const AttentionPath& path = *shape_->attention;
  const GroupShape& group = shape_->groups[b.group];
  if (!beside(step, b.group)) {
    if (step.num_decode_rows > 0) CUDA_CHECK(path.run_decode(decode_params(b), group.decode_ctas, stream));
    if (!step.decode_only()) run_extend(b, step, false, stream);
    return;
  }
  DecodeParams decode = decode_params(b);
  const int first = group.mixed.decode_ctas, late = group.decode_ctas - first;
  fork(stream);
  CUDA_CHECK(path.run_decode(decode, first, stream));
  run_extend(b, step, late > 0, side_);
  decode.helped_ctas = first;
  if (late > 0) CUDA_CHECK(path.run_decode(decode, late, side_));
  join(stream);
}

void CudaBlocks::fork(cudaStream_t stream) {
  CUDA_CHECK(cudaEventRecord(fork_, stream));
  CUDA_CHECK(cudaStreamWaitEvent(side_, fork_, 0));
}
void CudaBlocks::join(cudaStream_t stream) {
  CUDA_CHECK(cudaEventRecord(join_, side_));
  CUDA_CHECK(cudaStreamWaitEvent(stream, join_, 0));
}

DecodeParams CudaBlocks::decode_params(const AttentionBlock& b) {
  const KvGroupView& kv = binding_.batch.groups[b.group];
  const CudaScratch::Group& scratch = scratch_->groups[b.group];
  return {.q = scratch_->q,
          .out = scratch_->attended,
          .pool = pool_of(b.group, b.layer),
          .block_table = kv.block_table,
          .table_stride = kv.table_stride,
          .rows = binding_.targets.rows,
          .plan = scratch.plan,
          .q_heads = b.q_heads,
          .kv_heads = b.kv_heads,
          .head_dim = b.head_dim,
          .window = b.window,
          .scale = b.scale,
          .softcap = b.softcap,
          .sinks = b.sinks,
          .partial_out = scratch.partial_out,
          .partial_ml = scratch.partial_ml,
          .done = scratch.done,
          .epoch = reinterpret_cast<const unsigned long long*>(&scratch_->state->next_launch),
          .launch_index = attention_index_[b.group]++};
}

void CudaBlocks::run_extend(const AttentionBlock& b, const StepShape& step, bool late_decode, cudaStream_t stream) {
  const KvGroupView& kv = binding_.batch.groups[b.group];
  const int tiles = step.extend_tiles[b.group];
  const ExtendSplit split =
      shape_->attention->extend_split(b.head_dim, tiles * b.kv_heads, step.extend_kv_tiles[b.group] * b.kv_heads, b.window,
                              num_sms_, beside(step, b.group));
  CUDA_CHECK(shape_->attention->run_extend({.q = scratch_->q,
                                    .out = scratch_->attended,
                                    .pool = pool_of(b.group, b.layer),
                                    .block_table = kv.block_table,
                                    .table_stride = kv.table_stride,
                                    .rows = binding_.targets.rows + step.num_decode_rows,
                                    .tile_start = scratch_->groups[b.group].tile_start,
                                    .num_rows = step.num_rows - step.num_decode_rows,
                                    .num_tiles = tiles,
                                    .q_heads = b.q_heads,
                                    .kv_heads = b.kv_heads,
                                    .head_dim = b.head_dim,
                                    .window = b.window,
                                    .scale = b.scale,
                                    .softcap = b.softcap,
                                    .sinks = b.sinks,
                                    .split = split,
                                    .partial = scratch_->extend_partial,
                                    .arrivals = scratch_->arrivals,
                                    .late_decode = late_decode},
                                   stream));
}

// ---- Linear attention --------------------------------------------------------------------------------------------

static_assert(kMostGateRows <= kMaxLinearTokens);  // x then lies in bf16, and its squares as those kernels leave them

bool CudaBlocks::makes_gates(const GatedDeltaBlock& b, const StepShape& step) const {
  const auto plain = [](const Weight& w) { return form_of(w.format) == WeightForm::kBf16 && w.bias == nullptr; };
  return prepared_ && step.decode_only() && step.num_tokens <= kMostGateRows && plain(b.b) && plain(b.a) &&
         delta_gates_served(b.b.cols, b.k_dim);
}

void CudaBlocks::run(const GatedDeltaBlock& b, const StepShape& step, size_t index, cudaStream_t stream) {
  project({&b.qkv, &b.z}, b.norm, scratch_->delta_in, step, stream);
  DeltaGates gates;
  if (makes_gates(b, step)) {
    gates = {.b = static_cast<const __nv_bfloat16*>(matrix_of(b.b).values),
             .a = static_cast<const __nv_bfloat16*>(matrix_of(b.a).values),
             .x = scratch_->normed,
             .hidden = static_cast<int>(b.b.cols),
             .squares = scratch_->squares,
             .num_squares = num_squares_,
             .squares_stride = kMaxLinearTokens,
             .eps = b.norm.eps};
  } else {
    project({&b.b, &b.a}, b.norm, scratch_->delta_ba, step, stream);
  }
  const DeltaParams params{.rows = rows_of(step),
                           .states = binding_.batch.states,
                           .layer = b.layer,
                           .k_heads = b.k_heads,
                           .v_heads = b.v_heads,
                           .dim = b.k_dim,
                           .in = scratch_->delta_in,
                           .in_stride = b.qkv.rows + b.z.rows,
                           .ba = gates.b != nullptr ? nullptr : scratch_->delta_ba,
                           .gates = gates,
                           .conv = b.conv,
                           .decay = b.decay,
                           .dt_bias = b.dt_bias,
                           .norm = b.out_norm.weight,
                           .eps = b.out_norm.eps,
                           .scratch = scratch_->delta,
                           .out = scratch_->attended};
  const bool both = step.num_decode_rows > 0 && !step.decode_only();
  if (both) fork(stream);
  if (step.num_decode_rows > 0) CUDA_CHECK(run_delta_decode(params, stream));
  if (!step.decode_only()) CUDA_CHECK(run_delta_extend(params, both ? side_ : stream));
  if (both) join(stream);
  residual(b.out, {}, scratch_->attended, XOrder::kBf16, step, index, stream);
}

// ---- Residuals, MLP, head ----------------------------------------------------------------------------------------

void CudaBlocks::residual(const Weight& w, const Norm& post_norm, const __nv_bfloat16* in, XOrder in_order,
                          const StepShape& step, size_t index, cudaStream_t stream, const float* out_scale) {
  const int hidden = static_cast<int>(w.rows);
  XOrder order = XOrder::kBf16;
  NextNorm next = next_norm(index, step, &order);
  const bool after = post_norm.weight != nullptr;
  float* out = after ? scratch_->y : scratch_->x;
  if (CudaProducts::own({&w}, step.num_tokens)) {
    LinearParams p{.matrix = {}, .out_kind = after ? LinearOut::kStore : LinearOut::kResidual, .x = in,
                   .tokens = step.num_tokens, .out = out, .out_stride = hidden, .next_norm = next.weight,
                   .next = next.next, .next_order = order, .out_squares = next.squares};
    p.matrix[0] = matrix_of(w);
    num_squares_ = products_.run_own(p, in_order, stream);
  } else {
    products_.run_library({.w = w, .x = in, .order = in_order, .tokens = step.num_tokens, .out = out,
                           .out_stride = hidden, .accumulate = !after}, stream);
    if (w.bias != nullptr) CUDA_CHECK(add_bias(out, step.num_tokens, hidden, w.bias, stream));
    if (!after) next = {};  // the block after normalises for itself
  }
  if (after) {
    CUDA_CHECK(mix({.tokens = step.num_tokens,
                    .hidden = hidden,
                    .x = scratch_->x,
                    .dense = scratch_->y,
                    .sum_norm = post_norm.weight,
                    .sum_eps = post_norm.eps,
                    .out_scale = out_scale,
                    .next = next},
                   stream));
    num_squares_ = 1, order = XOrder::kBf16;
  }
  prepared_ = next.next != nullptr, prepared_order_ = order;
}

void CudaBlocks::run(const AttnOutBlock& b, const StepShape& step, size_t index, cudaStream_t stream) {
  if (b.gated) CUDA_CHECK(gate_attention(scratch_->attended, scratch_->attention_gate, step.num_tokens * b.o.cols, stream));
  residual(b.o, b.post_norm, scratch_->attended, XOrder::kBf16, step, index, stream);
}

XOrder CudaBlocks::gated_products(const Weight& gate_w, const Weight& up_w, const Weight& down, Activation activation,
                                  const Norm& norm, __nv_bfloat16* normed, const StepShape& step, cudaStream_t stream) {
  const bool gelu = activation == Activation::kGeluTanh;
  const int width = static_cast<int>(gate_w.rows);
  const CudaProducts::Weights weights = {&gate_w, &up_w};
  const XOrder gated_order = CudaProducts::order_for({&down}, step.num_tokens);
  LinearParams p{.matrix = {}, .num_matrices = 2, .out_kind = LinearOut::kGated, .tokens = step.num_tokens,
                 .next_order = gated_order, .gated = scratch_->gated, .gelu = gelu};
  p.matrix[0] = matrix_of(gate_w), p.matrix[1] = matrix_of(up_w);
  if (CudaProducts::own(weights, step.num_tokens) && matrices_unsupported(p) == nullptr) {
    const XOrder order = take_normed(p, norm, gate_w.cols, step, normed, stream);
    products_.run_own(p, order, stream);
    return gated_order;
  }
  const XOrder order = CudaProducts::library_order(weights);
  normalise(norm, gate_w.cols, step, order, normed, stream);
  __nv_bfloat16* out = scratch_->gate_up;
  for (const Weight* w : weights) {
    products_.run_library({.w = *w, .x = normed, .order = order, .tokens = step.num_tokens, .out = out,
                           .out_stride = 2 * width, .kind = ProductOut::kGated}, stream);
    out += width;
  }
  CUDA_CHECK(gate({.gate_up = scratch_->gate_up,
                   .gate_half = CudaProducts::library_order({&gate_w}) != XOrder::kBf16,
                   .up_half = CudaProducts::library_order({&up_w}) != XOrder::kBf16,
                   .gate_bias = gate_w.bias,
                   .up_bias = up_w.bias,
                   .tokens = step.num_tokens,
                   .width = width,
                   .gelu = gelu,
                   .order = gated_order,
                   .out = scratch_->gated},
                  stream));
  return gated_order;
}

void CudaBlocks::run(const MlpBlock& b, const StepShape& step, size_t index, cudaStream_t stream) {
  const XOrder order = gated_products(b.gate, b.up, b.down, b.activation, b.norm, scratch_->normed, step, stream);
  residual(b.down, b.post_norm, scratch_->gated, order, step, index, stream, b.out_scale);
}

void CudaBlocks::run(const MoeBlock& b, const StepShape& step, size_t index, cudaStream_t stream) {
  const NextNorm next = next_norm(index, step);
  const int stride =
      step.num_tokens <= kMaxLinearTokens ? kMaxLinearTokens : step.num_tokens;  // as projections read them
  const StepRows rows = rows_of(step);
  if (b.dense.present()) {
    fork(stream);
    run_dense(b, step, side_);
  }
  experts_.route(b, rows, prepared_, stream);
  experts_.multiply(b, rows, stream);
  if (b.dense.present()) join(stream);
  num_squares_ = experts_.finish(b, rows, next, stride, stream);
  prepared_ = next.next != nullptr, prepared_order_ = XOrder::kBf16;
}

// In its own memory, beside routing and experts: scratch_->normed is read where the residual before prepared it.
void CudaBlocks::run_dense(const MoeBlock& b, const StepShape& step, cudaStream_t stream) {
  const DenseBranch& dense = b.dense;
  const bool own_norm = dense.norm.weight != nullptr;
  const bool as_prepared = prepared_ && !own_norm && CudaProducts::own({&dense.gate, &dense.up}, step.num_tokens);
  __nv_bfloat16* normed = as_prepared ? scratch_->normed : scratch_->experts.dense_in;
  const XOrder order = gated_products(dense.gate, dense.up, dense.down, dense.activation, own_norm ? dense.norm : b.norm,
                                      normed, step, stream);
  const int64_t hidden = dense.down.rows;
  if (CudaProducts::own({&dense.down}, step.num_tokens)) {
    LinearParams p{.matrix = {}, .x = scratch_->gated, .tokens = step.num_tokens, .out = scratch_->experts.dense,
                   .out_stride = hidden};
    p.matrix[0] = matrix_of(dense.down);
    products_.run_own(p, order, stream);
    return;
  }
  products_.run_library({.w = dense.down, .x = scratch_->gated, .order = order, .tokens = step.num_tokens,
                         .out = scratch_->experts.dense, .out_stride = hidden}, stream);
}

void CudaBlocks::run(const HeadBlock& b, const StepShape& step, size_t, cudaStream_t stream) {
  LinearParams p{.matrix = {}, .x = scratch_->last, .tokens = step.num_rows, .out = scratch_->logits,
                 .out_stride = shape_->logits_stride, .softcap = b.softcap};
  p.matrix[0] = matrix_of(b.head);
  XOrder order = CudaProducts::order_for({&b.head}, step.num_rows);
  if (prepared_) {
    order = take_normed(p, b.norm, b.head.cols, step, scratch_->normed, stream);
  } else {
    CUDA_CHECK(rms_norm_last(rows_of(step), scratch_->x, static_cast<int>(b.head.cols), b.norm.weight, b.norm.eps,
                             order, scratch_->last, stream));
  }
  if (CudaProducts::own({&b.head}, step.num_rows)) {
    products_.run_own(p, order, stream);
    return;
  }
  products_.run_library({.w = b.head, .x = scratch_->last, .order = order, .tokens = step.num_rows,
                         .out = scratch_->logits, .out_stride = shape_->logits_stride, .kind = ProductOut::kLogits},
                        stream);
  if (b.softcap > 0) CUDA_CHECK(soft_cap(scratch_->logits, step.num_rows * shape_->logits_stride, b.softcap, stream));
}

}  // namespace tailrace::cuda
