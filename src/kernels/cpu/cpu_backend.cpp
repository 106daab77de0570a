// The CPU backend: one closure per step on the stream, which runs the fused blocks and the sampler over a thread pool.
#include <algorithm>
#include <thread>

#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/cpu/gated_delta.h"
#include "kernels/cpu/step.h"
#include "sampler/sampler.h"

namespace tailrace {
namespace {

class CpuBackend : public HostBackend {
 public:
  explicit CpuBackend(const BackendOptions& options)
      : options_(options),
        pool_(options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {}

  const char* name() const override { return "cpu"; }

  Expected<size_t> packed_bytes(const TensorView& tensor) const override { return cpu::packed_bytes(tensor); }
  Status pack(const TensorView& tensor, void* dst) const override { return cpu::pack(tensor, dst); }
  Expected<bool> pack_random(const TensorView& shape, uint64_t seed, float deviation, void* dst) const override {
    return cpu::pack_random(shape, seed, deviation, dst);
  }

  Expected<size_t> scratch_bytes(const BlockList& blocks, const StepLimits& limits) const override {
    const auto shape = cpu::step_shape(blocks, limits, options_, pool_.size());
    if (!shape) return fail(shape.error());
    return cpu::StepScratch(nullptr, *shape).bytes;
  }

  Status prepare(const BlockList& blocks, const StepLimits& limits, void* scratch) override {
    auto shape = cpu::step_shape(blocks, limits, options_, pool_.size());
    if (!shape) return shape.error();
    if (options_.count_experts) count_experts(limits.max_rows);
    blocks_ = &blocks;
    shape_ = std::move(*shape);
    scratch_ = std::make_unique<cpu::StepScratch>(scratch, shape_);
    for (int i = 0; i < pool_.size(); ++i) {
      init_sampler_scratch(scratch_->samplers + i * scratch_->sampler_stride, limits.vocab);
    }
    return {};
  }

  std::vector<std::string> decisions(const BlockList& blocks) const override {
    const std::string linear = std::string("fused, ") + cpu::isa_name() + " on stored weights";
    const std::string vectors = cpu::attention_kernels().name;
    const std::string decode =
        options_.fold_decode ? "through the extend kernel (mixed fold)"
        : options_.kv_splits > 0
            ? "own kernel, " + std::to_string(options_.kv_splits) + " splits (fixed)"
            : "own kernel, splits from the effective length, the KV heads and " + std::to_string(pool_.size()) + " threads";
    const std::string widened = options_.kv_format == Format::kF8E4M3 ? ", each widened from FP8 to BF16" : "";
    std::vector<std::string> out;
    const auto say = [&](bool has, std::string line) {
      if (has) out.push_back(std::move(line));
    };
    const bool attends = has_block<AttentionBlock>(blocks);
    say(has_block<AttnInBlock>(blocks), "attn_in: " + linear + " (norm, q|k|v, head norms, rope, KV write)");
    say(attends, "attention extend: " + vectors + " tiles of queries by chunks of keys" + widened);
    say(attends,
        "attention decode: " + vectors + ", " + decode + (widened.empty() ? "" : "; chunks of keys" + widened));
    say(has_block<AttnOutBlock>(blocks), "attn_out: " + linear + " (product, post norm, residual)");
    say(has_block<GatedDeltaBlock>(blocks), "gated_delta: " + linear + "; " + vectors +
                                                ", decode rows one token at a time, extend rows " +
                                                std::to_string(cpu::kDeltaChunk) + " at a time");
    say(has_block<MlpBlock>(blocks), "mlp: " + linear + " (gate and up with activation, down, residual)");
    say(has_block<MoeBlock>(blocks),
        "moe: " + linear + " (router; chosen experts only, rows by expert: gate, up, activation, down, sum)");
    say(has_block<HeadBlock>(blocks), "head_sample: " + linear + " on sampling rows, rows sampled in parallel");
    return out;
  }

  void forward(Stream& stream, const Batch& batch) override {
    CHECK(scratch_ != nullptr);
    stream.run([this, batch] { run_step(batch); });
  }

  const float* last_logits() const override { return scratch_->logits; }

 private:
  void run_step(const Batch& batch) {
    if (batch.num_rows == 0) return;
    cpu::Step step{pool_, shape_, *scratch_, cpu::attention_kernels(), cpu::token_kernels(), batch, {},
                   options_.fold_decode, expert_counter(batch)};
    cpu::begin_step(step);
    for (const LayerBlock& block : *blocks_) {
      std::visit([&](const auto& b) { cpu::run_block(step, b); }, block);
    }
    cpu::sample_step(step);
  }

  BackendOptions options_;
  cpu::ThreadPool pool_;
  const BlockList* blocks_ = nullptr;
  cpu::StepShape shape_;
  std::unique_ptr<cpu::StepScratch> scratch_;
};

}  // namespace

std::unique_ptr<HostBackend> create_cpu_backend(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace tailrace
