// CudaShape: what the CUDA backend needs to know of a block list, and what its GPU's tuning says of that.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/block_widths.h"
#include "kernels/cuda/attention_path.h"
#include "kernels/cuda/weight_form.h"

namespace tailrace::cuda {

// Attention of one KV group: one shape, so one plan a step.
struct GroupShape {
  int32_t q_heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  int32_t decode_ctas = 0, max_chunks = 0;
  DecodeTuning decode;
  MixedTuning mixed;
  int32_t gqa_ratio() const { return q_heads / kv_heads; }
};

struct CudaShape {
  const AttentionPath* attention = nullptr;  // of all layers
  std::string portable_for;  // the layer for whose sake that is the path of any GPU, or ""
  BlockWidths widths;
  StepLimits limits;
  GroupShape groups[kMaxKvGroups];
  int32_t num_groups = 0;
  int32_t max_extend_parts = 0;
  bool has_post_norm = false;
  bool has_shared_last = false;  // a mixture's shared expert is the last of its experts
  bool has_halves = false;     // a matrix is multiplied as f16
  int64_t widened = 0;         // values of the largest matrix that is widened for cuBLASLt
  int64_t logits_stride = 0;
};

// What becomes of a product's sums.
enum class ProductOut : uint8_t {
  kSums,    // q|k|v or the residual: fp32
  kGated,   // gate or up: 16 bits until the activation
  kLogits,  // fp32, of rows instead of tokens
};
// Calls fn(weight, what becomes of its sums) for each matrix that the block multiplies with.
template <typename Fn>
void for_each_product(const LayerBlock& block, const Fn& fn) {
  if (const auto* in = std::get_if<AttnInBlock>(&block)) {
    for (const Weight* w : {&in->q, &in->k, &in->v, &in->gate}) {
      if (w->rows > 0) fn(*w, ProductOut::kSums);
    }
  } else if (const auto* delta = std::get_if<GatedDeltaBlock>(&block)) {
    for (const Weight* w : {&delta->qkv, &delta->z, &delta->b, &delta->a, &delta->out}) fn(*w, ProductOut::kSums);
  } else if (const auto* out = std::get_if<AttnOutBlock>(&block)) {
    fn(out->o, ProductOut::kSums);
  } else if (const auto* mlp = std::get_if<MlpBlock>(&block)) {
    fn(mlp->gate, ProductOut::kGated), fn(mlp->up, ProductOut::kGated), fn(mlp->down, ProductOut::kSums);
  } else if (const auto* moe = std::get_if<MoeBlock>(&block); moe != nullptr && moe->dense.present()) {
    fn(moe->dense.gate, ProductOut::kGated), fn(moe->dense.up, ProductOut::kGated), fn(moe->dense.down, ProductOut::kSums);
  } else if (const auto* head = std::get_if<HeadBlock>(&block)) {
    fn(head->head, ProductOut::kLogits);
  }
}

// Whether cuBLASLt cannot multiply the form as it is stored.
constexpr bool needs_widening(WeightForm form) { return form != WeightForm::kBf16 && form != WeightForm::kF16; }

// kUnsupported: what no kernel serves. kInvalidArgument: a tuning table that the GPU cannot follow. The GPU is current.
Expected<CudaShape> cuda_shape(const BlockList& blocks, const StepLimits& limits, const BackendOptions& options);

}  // namespace tailrace::cuda
