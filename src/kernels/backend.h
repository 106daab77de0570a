// Backend: how one device computes a list of layer blocks for a Batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "batch/batch.h"
#include "device/device.h"
#include "kernels/blocks.h"
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
  bool fold_decode = false; // --mixed fold: decode rows run through the extend attention kernel
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;

  // Bytes of `tensors` stacked by rows (same cols) in this backend's layout; kUnsupported names the tensor and why.
  virtual Expected<size_t> packed_bytes(const TensorView& tensor) const = 0;
  // Packs a checkpoint tensor [rows, cols] to `dst` (packed_bytes long, device memory) in its stored precision.
  virtual Status pack(const TensorView& tensor, void* dst) const = 0;

  // Scratch that forward needs at `limits` (activations, decode partials, logits): a ledger line, claimed by the caller.
  virtual size_t scratch_bytes(const BlockList& blocks, const StepLimits& limits) const = 0;
  // Called once, before the first forward. `blocks` and `scratch` outlive the backend's use.
  virtual Status prepare(const BlockList& blocks, const StepLimits& limits, void* scratch) = 0;
  // One line per block kind: which implementation serves it and why (printed at boot and by inspect).
  virtual std::vector<std::string> decisions() const = 0;

  // Queues the whole step on `stream`: all blocks, then sampling of the rows with samples != 0 into batch.sampled and
  // into state.token_log[slot][kv_len]. Neither blocks nor allocates. `batch` is copied.
  virtual void forward(Stream& stream, const Batch& batch) = 0;

  // Logits of the last forward's sampling rows in row order [num_rows, vocab] fp32 (tests, evaluation).
  virtual const float* last_logits() const = 0;
};

// The fused CPU kernels (AVX-512 VNNI, AVX2 or portable, chosen at run time), and the reference composition of small ops.
std::unique_ptr<Backend> create_cpu_backend(const BackendOptions& options);
std::unique_ptr<Backend> create_reference_backend(const BackendOptions& options);

}  // namespace tailrace
