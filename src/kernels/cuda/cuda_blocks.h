// CudaBlocks: queues the blocks of a step, each on the kernels that serve its shape.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/cuda_device.h"
#include "kernels/cuda/attention_path.h"
#include "kernels/cuda/cuda_experts.h"
#include "kernels/cuda/cuda_products.h"
#include "kernels/cuda/cuda_scratch.h"
#include "kernels/cuda/cuda_shape.h"

namespace tailrace::cuda {

// What a step is made of; the host knows all of it before the launch.
struct StepShape {
  int num_rows = 0, num_decode_rows = 0, num_tokens = 0;
  int extend_tiles[kMaxKvGroups] = {};         // per KV head
  int64_t extend_kv_tiles[kMaxKvGroups] = {};  // blocks that they see, per KV head
  bool padded = false;                         // a captured graph: rows beyond the step's are dummies
  bool decode_only() const { return num_rows == num_decode_rows; }
};

// Few tokens take own kernels on stored weights, with norms as factors of their sums; many take cuBLASLt
// (CudaProducts).
class CudaBlocks {
 public:
  CudaBlocks(const BackendOptions& options, int num_sms)
      : options_(options), num_sms_(num_sms), products_(num_sms) {}
  ~CudaBlocks();
  CudaBlocks(const CudaBlocks&) = delete;

  // All outlive the object. counters: of CudaExperts, or null. Boot only.
  Status prepare(const BlockList& blocks, const CudaShape& shape, const CudaScratch& scratch, ExpertCounter* counters);
  void bind(const StepBinding& binding) { binding_ = binding; }
  // Whether a step of so many tokens runs a library's kernel that none of fewer tokens ran.
  bool brings_new_algorithm(int tokens) const { return products_.brings_new_algorithm(tokens); }
  // Embedding to logits. Neither blocks nor allocates.
  void queue(const StepShape& step, cudaStream_t stream);

 private:
  void run(const EmbedBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const AttnInBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const AttentionBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const AttnOutBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const GatedDeltaBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const MlpBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const MoeBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const HeadBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  DecodeParams decode_params(const AttentionBlock& block);
  void run_extend(const AttentionBlock& block, const StepShape& step, bool late_decode, cudaStream_t stream);
  // out = W norm(x) of up to three matrices side by side, of the step's tokens; whether their biases are added.
  bool project(CudaProducts::Weights weights, const Norm& norm, float* out, const StepShape& step, cudaStream_t stream);
  // What runs on side_ between the two runs beside what runs on the stream.
  void fork(cudaStream_t stream);
  void join(cudaStream_t stream);

  // Whether group g's decode and extend attention run side by side in this step; decode then leaves extend room.
  bool beside(const StepShape& step, int g) const {
    return step.num_decode_rows > 0 && !step.decode_only() &&
           step.extend_tiles[g] * shape_->groups[g].kv_heads >= std::max(1, shape_->groups[g].mixed.beside_tiles);
  }
  DecodeTuning decode_tuning(const StepShape& step, int g) const {
    DecodeTuning tuning = shape_->groups[g].decode;
    if (beside(step, g)) tuning.chunks_per_cta = shape_->groups[g].mixed.chunks_per_cta;
    return tuning;
  }
  StepRows rows_of(const StepShape& step) const {
    return {binding_.targets.rows, step.num_rows, step.num_decode_rows, step.num_tokens};
  }
  // The group's KV of the layer.
  void* pool_of(int group, int layer) const;
  void normalise(const Norm& norm, int64_t hidden, const StepShape& step, XOrder order, __nv_bfloat16* out,
                 cudaStream_t stream);
  // x = (x + post_norm(W in)) * out_scale: with `in` as it is; out_scale only with a post norm, or null.
  void residual(const Weight& w, const Norm& post_norm, const __nv_bfloat16* in, XOrder in_order, const StepShape& step,
                size_t index, cudaStream_t stream, const float* out_scale = nullptr);
  // act(gate norm(x)) * (up norm(x)) to scratch_->gated, in the order that `down` takes, which it returns. normed: where
  // norm(x) goes, if it is not there: scratch_->normed as the residual before prepared it.
  XOrder gated_products(const Weight& gate, const Weight& up, const Weight& down, Activation activation, const Norm& norm,
                        __nv_bfloat16* normed, const StepShape& step, cudaStream_t stream);
  // Whether the recurrent kernel of the step makes b and a itself, from what the residual before prepared.
  bool makes_gates(const GatedDeltaBlock& block, const StepShape& step) const;
  // The branch beside a mixture's experts, to scratch_->experts.dense.
  void run_dense(const MoeBlock& block, const StepShape& step, cudaStream_t stream);
  // The norm in front of the block after `index`, which the residual before it prepares where that block's projection
  // applies the factor; `order`: in which it takes x.
  NextNorm next_norm(size_t index, const StepShape& step, XOrder* order = nullptr) const;
  // x of a block's first projections, on own kernels: prepared by the residual before, where `normed` is scratch_'s, or
  // normalised now. Its order.
  XOrder take_normed(LinearParams& params, const Norm& norm, int64_t hidden, const StepShape& step,
                     __nv_bfloat16* normed, cudaStream_t stream);

  BackendOptions options_;
    int num_sms_;
  CudaProducts products_;
  CudaExperts experts_;
  const BlockList* blocks_ = nullptr;
  const CudaShape* shape_ = nullptr;
  const CudaScratch* scratch_ = nullptr;
  StepBinding binding_{};
  cudaStream_t side_ = nullptr;  // extend rows' attention beside decode rows'
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  // What the last residual left in scratch_->normed: nothing, or x * weight in an order, and its squares in parts.
  bool prepared_ = false;
  XOrder prepared_order_ = XOrder::kBf16;
  int num_squares_ = 0;
  int attention_index_[kMaxKvGroups] = {};  // launches of each group's plan so far in the step that is queued
};

}  // namespace tailrace::cuda
