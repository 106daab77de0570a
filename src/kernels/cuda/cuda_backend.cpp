#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/gpu_code.h"
#include "kernels/cuda/attention_path.h"
#include "kernels/cuda/cuda_blocks.h"
#include "kernels/cuda/cuda_scratch.h"
#include "kernels/cuda/expert_form.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/random_fill.h"

namespace tailrace::cuda {
namespace {

constexpr int kMostWarmTokens = 1024;  // own kernels end below: beyond, only cuBLASLt's algorithms change

Expected<size_t> router_bytes(const TensorView& tensor) {
  const Format f = tensor.format;
  if (tensor.shape.size() == 2 && (f == Format::kF32 || f == Format::kF16 || f == Format::kBF16)) {
    return static_cast<size_t>(tensor.shape[0]) * stored_row_bytes(f, tensor.shape[1]);
  }
  return fail(StatusCode::kUnsupported, "tensor " + printable(tensor.name) +
                                            ": the CUDA backend takes routers in F32, F16 and BF16, not " +
                                            format_traits(f).name);
}

constexpr size_t kMostKeptBytes = 64 << 20;  // of a thread that packs

std::string experts_decision(const BlockList& blocks) {
  const bool shared_last = std::ranges::any_of(blocks, [](const LayerBlock& block) {
    const auto* moe = std::get_if<MoeBlock>(&block);
    return moe != nullptr && moe->shared_last();
  });
  const std::string few = std::string("experts: routed on the device") +
                          (shared_last ? ", the shared one the last of them" : "") +
                          "; as stored, each read once a step, ";
  if (!has_hopper_code()) return few + "portable kernels";
  return few + "steps of up to " + std::to_string(kMostFewExpertTokens) + " tokens streamed, more grouped on wgmma";
}

// From which size on a chunk's attention runs beside decode's: below it they take turns, which is quicker there.
std::string in_turn(const CudaShape& shape) {
  std::string out;
  for (int g = 0; g < shape.num_groups; ++g) {
    const GroupShape& group = shape.groups[g];
    if (group.mixed.beside_tiles <= 1) continue;
    out += (out.empty() ? " (" : ", ") + std::string("group ") + std::to_string(g) + ": of " +
           std::to_string(group.mixed.beside_tiles) + " tiles or more, else in turn";
  }
  return out.empty() ? out : out + ")";
}

class CudaBackend : public Backend {
 public:
  CudaBackend(CudaDevice& device, const BackendOptions& options)
      : device_(device),
        options_(options),
        blocks_(options, (device.make_current(), device.sm_count())) {
    shape_.attention = &attention_path(options.kv_format);
  }
  ~CudaBackend() override {
    for (Graph& graph : graphs_) cudaGraphExecDestroy(graph.exec);
  }

  const char* name() const override { return "cuda"; }
  int32_t stored_head_dim(int32_t head_dim) const override { return padded_dim(head_dim); }
  int32_t stored_conv_inputs(int32_t conv_width) const override { return conv_width; }
  Expected<size_t> packed_bytes(const TensorView& tensor) const override {
    switch (tensor.role) {
      case MatrixRole::kExpert:
        return packed_expert_bytes(tensor);
      case MatrixRole::kRouter:
        return router_bytes(tensor);
      case MatrixRole::kProjection:
        break;
    }
    return cuda::packed_bytes(tensor);
  }
  Status pack(const TensorView& tensor, void* dst) const override {
    const auto bytes = packed_bytes(tensor);
    if (!bytes) return bytes.error();
    const bool expert = tensor.role == MatrixRole::kExpert;
    if (tensor.role == MatrixRole::kRouter || (!expert && lies_as_stored(tensor))) {
      const size_t stored = stored_row_bytes(tensor.format, tensor.shape[1]) * static_cast<size_t>(tensor.shape[0]);
      if (stored != tensor.bytes) return {StatusCode::kDataLoss, tensor.name + ": size does not match its shape"};
      device_.upload(dst, tensor.data, stored);
      return {};
    }
    // Kept from one matrix to the next: a fresh buffer's page faults last as long as packing.
    static thread_local std::vector<std::byte> packed;
    if (packed.size() < *bytes) packed.resize(*bytes);
    const Status status = expert ? pack_expert(tensor, packed.data()) : cuda::pack(tensor, packed.data());
    if (status.ok()) device_.upload(dst, packed.data(), *bytes);
    if (packed.size() > kMostKeptBytes) packed = {};
    return status;
  }

  Expected<bool> pack_random(const TensorView& shape, uint64_t seed, float deviation, void* dst) const override {
    const auto bytes = packed_bytes(shape);
    if (!bytes) return fail(bytes.error());
    if (shape.role == MatrixRole::kRouter || shape.shape[1] % 32 != 0) return false;
    device_.make_current();
    const int64_t rows = shape.shape[0], cols = shape.shape[1];
    if (shape.role == MatrixRole::kExpert) {
      const ExpertForm form = *expert_form_of(shape.format);
      CUDA_CHECK(fill_random_expert(form, rows, cols, seed, deviation, dst, cudaStreamPerThread));
    } else {
      CUDA_CHECK(fill_random(*weight_form(shape), rows, cols, seed, deviation, dst, cudaStreamPerThread));
    }
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    return true;
  }

  bool joins_shared_expert(int64_t experts, int top_k) const override {
    return experts <= kMostExperts && top_k < kMostTopK;
  }

  Expected<size_t> scratch_bytes(const BlockList& blocks, const StepLimits& limits) const override {
    device_.make_current();
    const auto shape = cuda_shape(blocks, limits, options_);
    if (!shape) return fail(shape.error());
    return CudaScratch(nullptr, *shape).bytes;
  }
  Status prepare(const BlockList& blocks, const StepLimits& limits, void* scratch) override;
  Status bind(const StepBinding& binding, Stream& stream) override;
  std::vector<std::string> decisions(const BlockList& blocks) const override;
  StepEvents run_step(Stream& stream, const StepLaunch& step) override;
  ExpertCounts expert_counts(int32_t rows) const override;
  const float* last_logits() const override;

 private:
  struct Graph {
    int rows;
    cudaGraphExec_t exec;
  };

  Status capture(int rows, cudaStream_t stream);
  void warm(int tokens, cudaStream_t stream);
  void queue_step(const StepShape& step, cudaStream_t stream);

  CudaDevice& device_;
  BackendOptions options_;
  CudaShape shape_;
  std::optional<CudaScratch> scratch_;
  CudaBlocks blocks_;
  StepBinding binding_{};
  StepStamp* stamps_ = nullptr;
  ExpertCounter* counters_ = nullptr;
  BeginParams begin_{};
  std::vector<Graph> graphs_;  // by rows, ascending
  uint64_t launches_ = 0;
  mutable std::vector<float> host_logits_;
};

Status CudaBackend::prepare(const BlockList& blocks, const StepLimits& limits, void* scratch) {
  device_.make_current();
  auto shape = cuda_shape(blocks, limits, options_);
  if (!shape) return shape.error();
  shape_ = *shape;
  scratch_.emplace(scratch, shape_);
  if (options_.count_experts) {
    constexpr size_t kBytes = (kMostCountedRows + 1) * sizeof(ExpertCounter);
    counters_ = static_cast<ExpertCounter*>(device_.alloc_device(kBytes, FirstTouch::kAtBoot));
    if (counters_ == nullptr) return {StatusCode::kResourceExhausted, "no device memory to count experts in"};
  }
  return blocks_.prepare(blocks, shape_, *scratch_, counters_);
}

ExpertCounts CudaBackend::expert_counts(int32_t rows) const {
  if (counters_ == nullptr || rows < 1 || rows > kMostCountedRows) return {};
  device_.make_current();
  ExpertCounter counter{};
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemcpy(&counter, counters_ + rows, sizeof counter, cudaMemcpyDeviceToHost));
  return {counter.mixtures, counter.distinct};
}

Status CudaBackend::bind(const StepBinding& binding, Stream& stream) {
  binding_ = binding;
  blocks_.bind(binding);
  stamps_ = static_cast<StepStamp*>(device_.alloc_pinned(sizeof(StepStamp) * kStagingRing));
  if (stamps_ == nullptr) return {StatusCode::kResourceExhausted, "no pinned memory for the step stamps"};
  begin_.targets = binding.targets;
  std::copy_n(binding.slabs, kStagingRing, begin_.slabs);
  begin_.state = scratch_->state;
  begin_.dummy_slot = shape_.limits.max_rows;  // its table row points at block 0
  begin_.num_tiles = shape_.num_groups;
  for (int g = 0; g < shape_.num_groups; ++g) {
    const GroupShape& group = shape_.groups[g];
    begin_.tiles[g] = {scratch_->groups[g].tile_start, group.gqa_ratio(), shape_.attention->extend_tile_rows(group.head_dim)};
  }
  const cudaStream_t s = device_.cuda_stream(stream);
  // Every product's algorithm once, outside of a graph: cuBLASLt loads a kernel at its first call, and a step that met
  // it would stand for ten milliseconds (hazard 7). The rows are zero: idle, they touch no KV. Above the few tokens where
  // own kernels change, a forward only where a new algorithm begins, and the largest: one a bucket is quadratic in the
  // chunk.
  const int64_t positions = int64_t{shape_.limits.max_rows} * shape_.limits.context_length;
  const auto most_tokens = static_cast<int>(std::min<int64_t>(shape_.limits.max_step_tokens, positions));
  for (int tokens = 1; tokens <= most_tokens; tokens = GemmLt::bucket(tokens) + 1) {
    if (tokens <= kMostWarmTokens || blocks_.brings_new_algorithm(tokens)) warm(tokens, s);
  }
  warm(most_tokens, s);
  CUDA_CHECK(cudaStreamSynchronize(s));
  const int most = std::min(options_.max_graph_rows, shape_.limits.max_rows);
  for (int rows = 1; rows <= most; rows = rows < 8 ? rows * 2 : rows + 8) {
    if (Status status = capture(rows, s); !status.ok()) return status;
  }
  if (most > 0 && graphs_.back().rows < most) return capture(most, s);
  return {};
}

// A forward of idle rows.
void CudaBackend::warm(int tokens, cudaStream_t stream) {
  const int rows = std::min(tokens, shape_.limits.max_rows);
  blocks_.queue({.num_rows = rows, .num_decode_rows = rows, .num_tokens = tokens}, stream);
}

Status CudaBackend::capture(int rows, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  queue_step({.num_rows = rows, .num_decode_rows = rows, .num_tokens = rows, .padded = true}, stream);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  if (error != cudaSuccess) {
    return {StatusCode::kResourceExhausted,
            "the decode graph of " + std::to_string(rows) + " rows: " + cudaGetErrorString(error)};
  }
  CUDA_CHECK(cudaGraphUpload(exec, stream));
  graphs_.push_back({rows, exec});
  return {};
}

StepEvents CudaBackend::run_step(Stream& stream, const StepLaunch& step) {
  CHECK(step.launch == launches_++);  // the device counts along
  const cudaStream_t s = device_.cuda_stream(stream);
  const auto graph =
      std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& g) { return g.rows >= step.num_rows; });
  if (step.num_rows == step.num_decode_rows && graph != graphs_.end()) {
    CUDA_CHECK(cudaGraphLaunch(graph->exec, s));
  } else {
    StepShape shape{.num_rows = step.num_rows, .num_decode_rows = step.num_decode_rows, .num_tokens = step.num_tokens};
    if (options_.fold_decode && !shape.decode_only()) shape.num_decode_rows = 0;
    for (int g = 0; g < shape_.num_groups; ++g) {
      const GroupShape& group = shape_.groups[g];
      for (int r = shape.num_decode_rows; r < step.num_rows; ++r) {
        const BatchRow& row = step.rows[r];
        const int tiles = extend_tiles(row.q_len, group.gqa_ratio(), shape_.attention->extend_tile_rows(group.head_dim));
        shape.extend_tiles[g] += tiles;
        shape.extend_kv_tiles[g] += int64_t{tiles} * (row.kv_len - row.q_len / 2 + kBlockTokens - 1) / kBlockTokens;
      }
    }
    queue_step(shape, s);
  }
  const StepStamp* stamp = stamps_ + step.launch % kStagingRing;
  return {.begun = device_.stamped_event(stamp, step.launch, true),
          .done = device_.stamped_event(stamp, step.launch, false)};
}

void CudaBackend::queue_step(const StepShape& step, cudaStream_t stream) {
  BeginParams begin = begin_;
  begin.padded_rows = step.padded ? step.num_rows : 0;
  begin.first_extend_row = step.num_decode_rows;
  CUDA_CHECK(begin_step(begin, stream));
  blocks_.queue(step, stream);
  CUDA_CHECK(run_sampler({.logits = scratch_->logits,
                          .vocab = shape_.limits.vocab,
                          .vocab_stride = shape_.logits_stride,
                          .rows = binding_.targets.rows,
                          .num_rows = step.num_rows,
                          .state = binding_.batch.state,
                          .sampled_ring = binding_.sampled,
                          .ring = kStagingRing,
                          .ring_stride = binding_.max_rows,
                          .step = &scratch_->state->launch,
                          .scratch = scratch_->sampler},
                         stream));
  CUDA_CHECK(end_step(scratch_->state, stamps_, stream));
}

std::vector<std::string> CudaBackend::decisions(const BlockList& blocks) const {
  std::string sizes;
  for (const Graph& graph : graphs_) sizes += (sizes.empty() ? "" : ", ") + std::to_string(graph.rows);
  if (graphs_.empty() && options_.max_graph_rows > 0) sizes = "up to " + std::to_string(options_.max_graph_rows);  // not yet bound
  const auto most = [](WeightForm form) { return std::to_string(CudaProducts::most_own_tokens(form)); };
  const std::string splits = options_.kv_splits > 0 ? std::to_string(options_.kv_splits) + " splits (fixed)"
                                                    : "splits planned on the device from effective lengths";
  const std::string mixed = options_.fold_decode ? "decode rows of mixed steps too (mixed fold)"
                                                 : "beside the decode kernel in mixed steps" + in_turn(shape_);
  const std::string portable = shape_.portable_for.empty() ? "" : "; as Hopper's kernels have none for " + shape_.portable_for;
  std::vector<std::string> out = {
      "projections of up to " + most(WeightForm::kBf16) + " tokens (quantised " + most(WeightForm::kFp8) +
          "): own kernels on stored weights, norms by factor, epilogues fused",
      "projections of more tokens: cuBLASLt, bf16 matrices in bf16, others in f16; quantised matrices are widened "
      "into scratch, one at a time"};
  if (has_block<MoeBlock>(blocks)) out.push_back(experts_decision(blocks));
  if (has_block<GatedDeltaBlock>(blocks)) {
    out.push_back(
        "linear attention: decode rows recurrent, one kernel; chunks of 64 tokens beside them in closed form");
  }
  if (has_block<AttentionBlock>(blocks)) {
    out.push_back(std::string("attention decode: ") + shape_.attention->decode + ", " + splits + portable);
    out.push_back(std::string("attention extend: ") + shape_.attention->extend + "; " + mixed);
    out.push_back("attention tuning: " + (shape_.attention->tuned
                                              ? options_.tuning.source
                                              : std::string("built-in defaults, which these kernels have alone")));
  }
  out.push_back("decode steps: captured graphs of " + (sizes.empty() ? "no size" : sizes + " rows"));
  return out;
}

const float* CudaBackend::last_logits() const {
  const StepState* at = scratch_->state;
  StepState state;
  CUDA_CHECK(cudaMemcpy(&state, at, sizeof state, cudaMemcpyDeviceToHost));
  std::vector<BatchRow> rows(static_cast<size_t>(state.num_rows));
  CUDA_CHECK(cudaMemcpy(rows.data(), binding_.targets.rows, sizeof(BatchRow) * rows.size(), cudaMemcpyDeviceToHost));
  host_logits_.clear();
  std::vector<float> logits(static_cast<size_t>(shape_.widths.vocab));
  for (size_t r = 0; r < rows.size(); ++r) {
    if (!rows[r].samples) continue;
    CUDA_CHECK(cudaMemcpy(logits.data(), scratch_->logits + static_cast<int64_t>(r) * shape_.logits_stride,
                          sizeof(float) * logits.size(), cudaMemcpyDeviceToHost));
    host_logits_.insert(host_logits_.end(), logits.begin(), logits.begin() + shape_.limits.vocab);
  }
  return host_logits_.data();
}

}  // namespace

std::unique_ptr<Backend> create_cuda_backend(Device& device, const BackendOptions& options) {
  return std::make_unique<CudaBackend>(static_cast<CudaDevice&>(device), options);
}

}  // namespace tailrace::cuda
