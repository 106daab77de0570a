// The reference backend: every block of kernels/blocks.h as a composition of small operations, in the order the comments
// of that header give. It defines the answer; it does not try to be fast.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/arena.h"
#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/block_widths.h"
#include "kernels/reference/ops.h"
#include "sampler/sampler.h"

namespace tailrace {
namespace {

// Working arrays of a step, all fp32.
struct Scratch {
  float *x, *normed, *q, *k, *v, *attended, *q_gate, *gate, *up, *y, *weight_row, *logits, *router, *expert_weights;
  float* mixed;
  float *delta_qkv, *delta_z, *delta_b, *delta_a, *delta_out;
  int32_t* expert_ids;
  std::byte* sampler;
  size_t bytes;

  Scratch(void* base, const BlockWidths& w, const StepLimits& limits) {
    ArenaCursor arena(base);
    const int64_t tokens = limits.max_step_tokens;
    x = arena.take<float>(tokens * w.hidden);
    normed = arena.take<float>(tokens * w.hidden);
    q = arena.take<float>(tokens * w.q);
    k = arena.take<float>(tokens * w.qkv);
    v = arena.take<float>(tokens * w.qkv);
    attended = arena.take<float>(tokens * w.q);
    q_gate = arena.take<float>(tokens * w.gate);
    delta_qkv = arena.take<float>(tokens * w.delta_channels);
    for (float** values : {&delta_z, &delta_out}) *values = arena.take<float>(tokens * w.delta_values);
    for (float** values : {&delta_b, &delta_a}) *values = arena.take<float>(tokens * w.delta_heads);
    const int64_t gated = std::max(tokens * w.intermediate, w.expert_rows);
    gate = arena.take<float>(gated);
    up = arena.take<float>(gated);
    router = arena.take<float>(w.experts);
    expert_weights = arena.take<float>(w.taken);
    expert_ids = arena.take<int32_t>(w.taken);
    y = arena.take<float>(tokens * w.hidden);
    mixed = arena.take<float>(w.hidden);
    weight_row = arena.take<float>(w.max_cols);
    logits = arena.take<float>(limits.max_rows * w.vocab);
    sampler = arena.take<std::byte>(static_cast<int64_t>(sampler_scratch_bytes(limits.vocab)));
    bytes = arena.bytes();
  }
};

class ReferenceBackend : public HostBackend {
 public:
  explicit ReferenceBackend(bool counts_experts) : counts_experts_(counts_experts) {}

  const char* name() const override { return "reference"; }

  Expected<size_t> packed_bytes(const TensorView& tensor) const override {
    if (tensor.shape.empty() || tensor.shape.size() > 2) {
      return fail(StatusCode::kUnsupported, tensor.name + ": only vectors and matrices can be packed");
    }
    if (tensor.rope_interleaved && (tensor.head_dim <= 0 || tensor.head_dim % 2 != 0 ||
                                    tensor.shape[0] % tensor.head_dim != 0)) {
      return fail(StatusCode::kUnsupported, tensor.name + ": rows are not whole heads of an even size");
    }
    if (tensor.shape.back() % format_traits(tensor.format).block_elems != 0) {
      return fail(StatusCode::kUnsupported, tensor.name + ": rows are not whole blocks of " +
                                                format_traits(tensor.format).name);
    }
    const int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
    return static_cast<size_t>(rows) * stored_row_bytes(tensor.format, tensor.shape.back());
  }

  // Plain stored rows; those ordered for pairwise RoPE go back to NeoX order (row 2i + s of a head was row s * half + i).
  Status pack(const TensorView& tensor, void* dst) const override {
    const auto bytes = packed_bytes(tensor);
    if (!bytes) return bytes.error();
    if (*bytes != tensor.bytes) return {StatusCode::kDataLoss, tensor.name + ": size does not match its shape"};
    if (!tensor.rope_interleaved) {
      std::memcpy(dst, tensor.data, *bytes);
      return {};
    }
    const size_t row_bytes = stored_row_bytes(tensor.format, tensor.shape.back());
    const int64_t half = tensor.head_dim / 2;
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      const int64_t in_head = row % tensor.head_dim;
      const int64_t to = row - in_head + in_head % 2 * half + in_head / 2;
      std::memcpy(static_cast<std::byte*>(dst) + static_cast<size_t>(to) * row_bytes,
                  tensor.data + static_cast<size_t>(row) * row_bytes, row_bytes);
    }
    return {};
  }

  bool joins_shared_expert(int64_t, int) const override { return true; }

  Expected<size_t> scratch_bytes(const BlockList& blocks, const StepLimits& limits) const override {
    if (Status status = check_blocks(blocks); !status.ok()) return fail(status);
    return Scratch(nullptr, block_widths(blocks), limits).bytes;
  }

  Status prepare(const BlockList& blocks, const StepLimits& limits, void* scratch) override {
    if (Status status = check_blocks(blocks); !status.ok()) return status;
    blocks_ = &blocks;
    limits_ = limits;
    widths_ = block_widths(blocks);
    if (counts_experts_) count_experts(limits.max_rows), taken_.resize(static_cast<size_t>(widths_.experts));
    scratch_ = std::make_unique<Scratch>(scratch, widths_, limits);
    init_sampler_scratch(scratch_->sampler, limits.vocab);
    return {};
  }

  std::vector<std::string> decisions(const BlockList&) const override {
    return {"all blocks: reference composition of small operations in fp32 and double"};
  }

  void forward(Stream& stream, const Batch& batch) override {
    CHECK(scratch_ != nullptr);
    stream.run([this, batch] { run_step(batch); });
  }

  const float* last_logits() const override { return scratch_->logits; }

 private:
  void run_step(const Batch& batch) {
    CHECK(batch.num_tokens <= limits_.max_step_tokens && batch.num_rows <= limits_.max_rows);
    for (int i = 0; i < batch.num_rows; ++i) {  // idle rows are zero wherever no block fills them
      if (!idle(batch.rows[i])) continue;
      std::fill_n(scratch_->x + batch.rows[i].q_start * widths_.hidden, widths_.hidden, 0.0f);
      std::fill_n(scratch_->attended + batch.rows[i].q_start * widths_.q, widths_.q, 0.0f);
    }
    const bool recurrent = batch.states.recurrent != nullptr;
    for (int i = 0; recurrent && i < batch.num_rows; ++i) {
      if (!idle(batch.rows[i])) begin_state(batch.states, batch.rows[i]);
    }
    counter_ = expert_counter(batch);
    for (const LayerBlock& block : *blocks_) {
      std::visit([&](const auto& b) { run(b, batch); }, block);
    }
    for (int i = 0; recurrent && i < batch.num_rows; ++i) {
      if (!idle(batch.rows[i])) save_state(batch.states, batch.rows[i]);
    }
    const float* logits = scratch_->logits;
    for (int i = 0; i < batch.num_rows; ++i) {
      if (!batch.rows[i].samples) continue;
      const BatchRow& row = batch.rows[i];
      sample_batch_row(batch, row, logits, limits_.vocab, scratch_->sampler, &batch.sampled[i]);
      logits += widths_.vocab;
    }
  }

  // Calls fn(row, token of the step, position in the sequence) for every token of the rows that are not idle.
  template <typename F>
  static void for_each_token(const Batch& batch, const F& fn) {
    for (int i = 0; i < batch.num_rows; ++i) {
      const BatchRow& row = batch.rows[i];
      for (int64_t t = 0; !idle(row) && t < row.q_len; ++t) fn(row, row.q_start + t, row.kv_len - row.q_len + t);
    }
  }

  void norm_tokens(const Norm& norm, const float* x, int64_t tokens, int64_t width, float* out) {
    for (int64_t t = 0; t < tokens; ++t) reference::rms_norm(norm, x + t * width, width, out + t * width);
  }

  void add_to_residual(const Norm& post_norm, int64_t tokens, const float* out_scale = nullptr) {
    const Scratch& s = *scratch_;
    norm_tokens(post_norm, s.y, tokens, widths_.hidden, s.y);
    const float scale = out_scale != nullptr ? *out_scale : 1.0f;
    for (int64_t i = 0; i < tokens * widths_.hidden; ++i) s.x[i] = (s.x[i] + s.y[i]) * scale;
  }

  void run(const EmbedBlock& block, const Batch& batch) {
    for_each_token(batch, [&](const BatchRow& row, int64_t token, int64_t position) {
      const TokenId id = batch.state.token_log[row.slot * batch.state.log_stride + position];
      float* x = scratch_->x + token * widths_.hidden;
      reference::lookup(block.table, id, x);
      for (int64_t i = 0; i < widths_.hidden; ++i) x[i] *= block.scale;
    });
  }

  void run(const AttnInBlock& block, const Batch& batch) {
    const Scratch& s = *scratch_;
    norm_tokens(block.norm, s.x, batch.num_tokens, widths_.hidden, s.normed);
    reference::matmul(block.q, s.normed, batch.num_tokens, s.q, block.q.rows, s.weight_row);
    reference::matmul(block.k, s.normed, batch.num_tokens, s.k, block.k.rows, s.weight_row);
    if (block.v.rows > 0) {
      reference::matmul(block.v, s.normed, batch.num_tokens, s.v, block.k.rows, s.weight_row);
    } else {
      std::copy_n(s.k, batch.num_tokens * block.k.rows, s.v);
    }
    reference::matmul(block.gate, s.normed, batch.num_tokens, s.q_gate, block.gate.rows, s.weight_row);
    const KvGroupView& kv = batch.groups[block.group];
    const int64_t dim = block.head_dim;
    for_each_token(batch, [&](const BatchRow& row, int64_t token, int64_t position) {
      for (int64_t h = 0; h < block.q_heads; ++h) {
        float* q = s.q + token * block.q.rows + h * dim;
        reference::rms_norm(block.q_norm, q, dim, q);
        reference::rope(block.rope, position, q);
      }
      for (int64_t h = 0; h < block.kv_heads; ++h) {
        float* k = s.k + token * block.k.rows + h * dim;
        reference::rms_norm(block.k_norm, k, dim, k);
        reference::rope(block.rope, position, k);
        float* v = s.v + token * block.k.rows + h * dim;
        reference::rms_norm(block.v_norm, v, dim, v);
        reference::write_kv(kv, block.layer, row.slot, position, 0, h, k);
        reference::write_kv(kv, block.layer, row.slot, position, 1, h, v);
      }
    });
  }

  void run(const AttentionBlock& block, const Batch& batch) {
    const int64_t stride = int64_t{block.q_heads} * block.head_dim;
    for_each_token(batch, [&](const BatchRow& row, int64_t token, int64_t position) {
      for (int64_t h = 0; h < block.q_heads; ++h) {
        const int64_t at = token * stride + h * block.head_dim;
        reference::attend(block, batch.groups[block.group], row.slot, position, h, scratch_->q + at,
                          scratch_->attended + at);
      }
    });
  }

  void run(const AttnOutBlock& block, const Batch& batch) {
    for (int64_t i = 0; block.gated && i < batch.num_tokens * block.o.cols; ++i) {
      scratch_->attended[i] *= reference::sigmoid(scratch_->q_gate[i]);
    }
    reference::matmul(block.o, scratch_->attended, batch.num_tokens, scratch_->y, widths_.hidden,
                      scratch_->weight_row);
    add_to_residual(block.post_norm, batch.num_tokens);
  }

  // The row's state where it is zeroed or copied first; then, behind its last token, its copy.
  void begin_state(const StatePoolView& states, const BatchRow& row) {
    float* recurrent = states.recurrent + row.slot * states.recurrent_stride;
    float* conv = states.conv + row.slot * states.conv_stride;
    if (row.state_from == kZeroState) {
      std::fill_n(recurrent, states.recurrent_stride, 0.0f);
      std::fill_n(conv, states.conv_stride, 0.0f);
    } else if (row.state_from > 0) {
      const int64_t from = state_source(states, row);
      std::copy_n(states.recurrent + from * states.recurrent_stride, states.recurrent_stride, recurrent);
      std::copy_n(states.conv + from * states.conv_stride, states.conv_stride, conv);
    }
  }

  void save_state(const StatePoolView& states, const BatchRow& row) {
    const int64_t to = state_target(states, row);
    if (to < 0) return;
    std::copy_n(states.recurrent + row.slot * states.recurrent_stride, states.recurrent_stride,
                states.recurrent + to * states.recurrent_stride);
    std::copy_n(states.conv + row.slot * states.conv_stride, states.conv_stride, states.conv + to * states.conv_stride);
  }

  void run(const GatedDeltaBlock& block, const Batch& batch) {
    const Scratch& s = *scratch_;
    const int64_t tokens = batch.num_tokens;
    norm_tokens(block.norm, s.x, tokens, widths_.hidden, s.normed);
    reference::matmul(block.qkv, s.normed, tokens, s.delta_qkv, block.qkv.rows, s.weight_row);
    reference::matmul(block.z, s.normed, tokens, s.delta_z, block.z.rows, s.weight_row);
    reference::matmul(block.b, s.normed, tokens, s.delta_b, block.v_heads, s.weight_row);
    reference::matmul(block.a, s.normed, tokens, s.delta_a, block.v_heads, s.weight_row);
    std::fill_n(s.delta_out, tokens * block.z.rows, 0.0f);  // of idle rows it stays so
    const StatePoolView& states = batch.states;
    const int64_t state_values = int64_t{block.v_heads} * block.k_dim * block.v_dim;
    const int64_t conv_values = (block.conv_width - 1) * block.channels();
    for_each_token(batch, [&](const BatchRow& row, int64_t token, int64_t) {
      const reference::DeltaToken now = {s.delta_qkv + token * block.qkv.rows, s.delta_z + token * block.z.rows,
                                         s.delta_b + token * block.v_heads, s.delta_a + token * block.v_heads};
      reference::gated_delta(block, now, states.conv + row.slot * states.conv_stride + block.layer * conv_values,
                             states.recurrent + row.slot * states.recurrent_stride + block.layer * state_values,
                             s.delta_out + token * block.z.rows);
    });
    reference::matmul(block.out, s.delta_out, tokens, s.y, widths_.hidden, s.weight_row);
    add_to_residual({}, tokens);
  }

  void run(const MlpBlock& block, const Batch& batch) {
    const Scratch& s = *scratch_;
    norm_tokens(block.norm, s.x, batch.num_tokens, widths_.hidden, s.normed);
    reference::matmul(block.gate, s.normed, batch.num_tokens, s.gate, block.gate.rows, s.weight_row);
    reference::matmul(block.up, s.normed, batch.num_tokens, s.up, block.up.rows, s.weight_row);
    for (int64_t i = 0; i < batch.num_tokens * block.gate.rows; ++i) {
      s.gate[i] = reference::activate(block.activation, s.gate[i]) * s.up[i];
    }
    reference::matmul(block.down, s.gate, batch.num_tokens, s.y, widths_.hidden, s.weight_row);
    add_to_residual(block.post_norm, batch.num_tokens, block.out_scale);
  }

  void run(const MoeBlock& block, const Batch& batch) {
    const Scratch& s = *scratch_;
    const int64_t hidden = widths_.hidden;
    std::fill(taken_.begin(), taken_.end(), false);
    for (int64_t token = 0; token < batch.num_tokens; ++token) {
      float* x = s.x + token * hidden;
      reference::rms_norm(block.norm, x, hidden, s.normed);
      reference::rms_norm(block.router_norm.weight != nullptr ? block.router_norm : block.norm, x, hidden, s.y);
      reference::matmul(block.router, s.y, 1, s.router, block.router.rows, s.weight_row);
      reference::route(s.router, block.router.rows, block.top_k, s.expert_ids, s.expert_weights);
      std::fill_n(s.mixed, hidden, 0.0f);
      for (int i = 0; i < block.top_k; ++i) {
        const int32_t expert = s.expert_ids[i];
        if (counter_ != nullptr) taken_[static_cast<size_t>(expert)] = true;
        const float factor = block.expert_scale != nullptr ? block.expert_scale[expert] : 1.0f;
        add_expert(block, expert, s.expert_weights[i] * factor, s.normed, s.mixed);
      }
      reference::rms_norm(block.experts_post_norm, s.mixed, hidden, s.mixed);
      const float share = share_of(block.dense, s.normed);
      if (block.dense.present()) add_dense(block.dense, share, s.normed, x, s.mixed);
      if (block.shared_last()) add_expert(block, block.router.rows, share, s.normed, s.mixed);
      reference::rms_norm(block.post_norm, s.mixed, hidden, s.mixed);
      const float scale = block.out_scale != nullptr ? *block.out_scale : 1.0f;
      for (int64_t i = 0; i < hidden; ++i) x[i] = (x[i] + s.mixed[i]) * scale;
    }
    if (counter_ == nullptr) return;
    ++counter_->mixtures;
    counter_->distinct += static_cast<uint64_t>(std::count(taken_.begin(), taken_.end(), true));
  }

  void add_expert(const MoeBlock& block, int64_t expert, float weight, const float* input, float* out) {
    const Scratch& s = *scratch_;
    const int64_t rows = block.gate.first.rows;
    reference::matmul(block.gate.of(expert), input, 1, s.gate, rows, s.weight_row);
    reference::matmul(block.up.of(expert), input, 1, s.up, rows, s.weight_row);
    for (int64_t i = 0; i < rows; ++i) {
      s.gate[i] = block.activation == Activation::kClampedSwiglu
                      ? reference::clamped_swiglu(block.clamped, s.gate[i], s.up[i])
                      : reference::activate(block.activation, s.gate[i]) * s.up[i];
    }
    reference::matmul(block.down.of(expert), s.gate, 1, s.y, widths_.hidden, s.weight_row);
    for (int64_t i = 0; i < widths_.hidden; ++i) out[i] += weight * s.y[i];
  }

  // How often the branch counts; `normed` is the experts' input.
  float share_of(const DenseBranch& dense, const float* normed) {
    if (dense.share.rows == 0) return 1.0f;
    float logit;
    reference::matmul(dense.share, normed, 1, &logit, 1, scratch_->weight_row);
    return reference::sigmoid(logit);
  }

  // `normed` is used up.
  void add_dense(const DenseBranch& dense, float share, float* normed, const float* x, float* out) {
    const Scratch& s = *scratch_;
    const int64_t rows = dense.gate.rows, hidden = widths_.hidden;
    if (dense.norm.weight != nullptr) reference::rms_norm(dense.norm, x, hidden, normed);
    reference::matmul(dense.gate, normed, 1, s.gate, rows, s.weight_row);
    reference::matmul(dense.up, normed, 1, s.up, rows, s.weight_row);
    for (int64_t i = 0; i < rows; ++i) s.gate[i] = reference::activate(dense.activation, s.gate[i]) * s.up[i];
    reference::matmul(dense.down, s.gate, 1, s.y, hidden, s.weight_row);
    reference::rms_norm(dense.post_norm, s.y, hidden, s.y);
    for (int64_t i = 0; i < hidden; ++i) out[i] += share * s.y[i];
  }

  void run(const HeadBlock& block, const Batch& batch) {
    const Scratch& s = *scratch_;
    int64_t sampling_rows = 0;
    for (int i = 0; i < batch.num_rows; ++i) {
      if (!batch.rows[i].samples) continue;
      const int64_t last = batch.rows[i].q_start + batch.rows[i].q_len - 1;
      reference::rms_norm(block.norm, s.x + last * widths_.hidden, widths_.hidden,
                          s.normed + sampling_rows++ * widths_.hidden);
    }
    reference::matmul(block.head, s.normed, sampling_rows, s.logits, widths_.vocab, s.weight_row);
    for (int64_t i = 0; i < sampling_rows * widths_.vocab; ++i) {
      s.logits[i] = reference::softcap(block.softcap, s.logits[i]);
    }
  }

  const bool counts_experts_;
  ExpertCounts* counter_ = nullptr;  // of the step
  std::vector<bool> taken_;          // experts of the mixture, where they are counted
  const BlockList* blocks_ = nullptr;
  StepLimits limits_;
  BlockWidths widths_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace

std::unique_ptr<HostBackend> create_reference_backend(const BackendOptions& options) {
  return std::make_unique<ReferenceBackend>(options.count_experts);
}

}  // namespace tailrace
