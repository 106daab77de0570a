// Backend: how one device computes a list of layer blocks for a Batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/status.h"
#include "batch/batch.h"
#include "batch/slab.h"
#include "device/device.h"
#include "kernels/blocks.h"
#include "kernels/tuning.h"
#include "weights/tensor.h"

namespace tailrace {

// The bounds that scratch is sized for, once, at boot.
struct StepLimits {
  int32_t max_rows = 0;
  int32_t max_step_tokens = 0;
  int32_t context_length = 0;
  int64_t vocab = 0;
};

struct BackendOptions {
  int threads = 0;          // CPU: 0 means all cores
  int kv_splits = 0;        // 0: chosen per step from the work; else fixed (A/B)
  bool fold_decode = false; // --mixed fold: decode rows of mixed steps run through the extend attention kernel
  int max_graph_rows = 0;   // CUDA: decode steps of up to this many rows run as captured graphs (--cuda-graph-max-bs)
  TuningTable tuning;       // CUDA: of the GPU
  Format kv_format = Format::kBF16;  // of every KV group: kBF16 or kF8E4M3 (--kv-cache-dtype)
  bool count_experts = false;  // see Backend::expert_counts
};

// What stays the same from launch to launch.
struct StepBinding {
  PatchTargets targets;
  Batch batch;                           // groups and state; what a launch adds is unset
  const std::byte* slabs[kStagingRing];  // device memory
  SampledRow* sampled;                   // pinned, kStagingRing places of max_rows
  int32_t max_rows;
};

// One step to queue.
struct StepLaunch {
  uint64_t launch = 0;              // 0, 1, 2, ...: the place of its slab and results in their rings
  const BatchRow* rows = nullptr;   // its rows in host memory, readable during the call
  int32_t num_rows = 0, num_decode_rows = 0, num_tokens = 0;
  bool has_slab = true;             // false: the decode rows of the last launch, each one token further
};

// The first and the last moment of a step on the device.
struct StepEvents {
  std::shared_ptr<Event> begun, done;
};

// Distinct experts that decode steps read, summed over their mixtures (one a layer and step).
struct ExpertCounts {
  uint64_t mixtures = 0, distinct = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  // Values that a KV head takes per token in this backend's pools: head_dim or more.
  virtual int32_t stored_head_dim(int32_t head_dim) const { return head_dim; }

  // Inputs of a recurrent layer's convolution that this backend's state pool keeps (batch.h): conv_width - 1 or more.
  virtual int32_t stored_conv_inputs(int32_t conv_width) const { return conv_width - 1; }

  // Bytes of the matrix in this backend's layout for its role; kUnsupported names the tensor and why.
  virtual Expected<size_t> packed_bytes(const TensorView& tensor) const = 0;
  // Packs a checkpoint tensor [rows, cols] to `dst` (packed_bytes long, device memory) in its stored precision.
  virtual Status pack(const TensorView& tensor, void* dst) const = 0;

  // Fills `dst` (packed_bytes(shape) long) with normal values of the given deviation, as this backend packs them; the same
  // seed gives the same bytes. False: this backend cannot, the caller packs values that it draws itself. Any thread.
  virtual Expected<bool> pack_random(const TensorView& shape, uint64_t seed, float deviation, void* dst) const {
    return false;
  }

  // Whether a mixture of so many routed experts may have its shared expert behind them (MoeBlock::shared_last), where
  // all its matrices have their format and shape; else it is a branch beside them.
  virtual bool joins_shared_expert(int64_t experts, int top_k) const { return false; }

  // Scratch that forward needs at `limits` (activations, decode partials, logits): a ledger line, claimed by the caller.
  // The error says what of blocks or limits cannot be served: asked before weights are loaded, where prepare is too late.
  virtual Expected<size_t> scratch_bytes(const BlockList& blocks, const StepLimits& limits) const = 0;
  // Called once, before the first forward. `blocks` and `scratch` outlive the backend's use.
  virtual Status prepare(const BlockList& blocks, const StepLimits& limits, void* scratch) = 0;
  // One line per kind of the model's `blocks`: which implementation serves it and why (printed at boot and by inspect).
  virtual std::vector<std::string> decisions(const BlockList& blocks) const = 0;

  // Called once, after prepare: the addresses that every launch uses. A backend that captures graphs does so here.
  virtual Status bind(const StepBinding& binding, Stream& stream) = 0;

  // Queues the whole step on `stream`: rows and patches (from the launch's slab, or each row one token further), all
  // blocks, then sampling of the rows with samples != 0 into the launch's place of the ring and into
  // state.token_log[slot][kv_len]. Neither blocks nor allocates.
  virtual StepEvents run_step(Stream& stream, const StepLaunch& step) = 0;

  // Of all steps so far that decoded `rows` rows and nothing else, as the device routed them; zeros without
  // BackendOptions::count_experts and of more rows than a backend counts. While nothing runs.
  virtual ExpertCounts expert_counts(int32_t rows) const { return {}; }
  // Logits of the last step's sampling rows in row order [num_rows, vocab] fp32, once it is done (tests, evaluation).
  virtual const float* last_logits() const = 0;
};

// A backend whose kernels are host code on the stream.
class HostBackend : public Backend {
 public:
  Status bind(const StepBinding& binding, Stream& stream) override {
    binding_ = binding;
    return {};
  }
  StepEvents run_step(Stream& stream, const StepLaunch& step) override;
  // Queues blocks and sampling of `batch`, whose rows lie in memory. `batch` is copied.
  virtual void forward(Stream& stream, const Batch& batch) = 0;
  ExpertCounts expert_counts(int32_t rows) const override;

 protected:
  // When preparing, where BackendOptions::count_experts asks for it.
  void count_experts(int32_t max_rows) { counts_.resize(static_cast<size_t>(max_rows) + 1); }
  // What the mixtures of the step add to, or null: not counted. In stream order.
  ExpertCounts* expert_counter(const Batch& batch);

 private:
  StepBinding binding_{};
  std::vector<ExpertCounts> counts_;  // by rows of decode steps
};

// The fused CPU kernels (AVX-512 VNNI, AVX2 or portable, chosen at run time), and the reference composition of small ops.
std::unique_ptr<HostBackend> create_cpu_backend(const BackendOptions& options);
std::unique_ptr<HostBackend> create_reference_backend(const BackendOptions& options);

}  // namespace tailrace
