#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/gpu_code.h"
#include "kernels/cuda/attention_path.h"
#include "kernels/cuda/cuda_scratch.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/random_fill.h"

namespace tailrace::cuda {
namespace {

Matrix matrix_of(const Weight& w) {
  const WeightForm form = *form_of(w.format);  // packed_bytes refused what has none
  const auto* base = static_cast<const std::byte*>(w.data);
  const bool per_row = w.scale_cols == w.cols;
  return {.form = form, .values = base, .scales = base + scales_offset(form, w.rows, w.cols),
          .row_scale = per_row ? w.scale : nullptr, .block_scale = per_row ? nullptr : w.scale, .bias = w.bias, .rows = static_cast<int>(w.rows), .cols = static_cast<int>(w.cols)};
}

// Up to so many tokens own kernels are faster than cuBLASLt, quantised matrices widened for it (docs/KERNELS.md).
int most_linear_tokens(WeightForm form) {
  if (!has_hopper_code()) return kMaxLinearTokens;
  return form == WeightForm::kBf16 ? kMostWideBf16Tokens : kMostWideTokens;
}

// What a step is made of; the host knows all of it before the launch.
struct StepShape {
  int num_rows = 0, num_decode_rows = 0, num_tokens = 0;
  int extend_tiles[kMaxKvGroups] = {};         // per KV head
  int64_t extend_kv_tiles[kMaxKvGroups] = {};  // blocks that they see, per KV head
  bool padded = false;                  // a captured graph: rows beyond the step's are dummies
  bool decode_only() const { return num_rows == num_decode_rows; }
};

class CudaBackend : public Backend {
 public:
  CudaBackend(CudaDevice& device, const BackendOptions& options)
      : device_(device), options_(options), attention_((device.make_current(), attention_path())) {}
  ~CudaBackend() override {
    for (Graph& graph : graphs_) cudaGraphExecDestroy(graph.exec);
    for (cudaEvent_t event : {fork_, join_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (side_ != nullptr) cudaStreamDestroy(side_);
  }

  const char* name() const override { return "cuda"; }
  int32_t stored_head_dim(int32_t head_dim) const override { return padded_dim(head_dim); }
  Expected<size_t> packed_bytes(const TensorView& tensor) const override { return cuda::packed_bytes(tensor); }
  Status pack(const TensorView& tensor, void* dst) const override {
    const auto bytes = cuda::packed_bytes(tensor);
    if (!bytes) return bytes.error();
    std::vector<std::byte> packed(*bytes);
    if (Status status = cuda::pack(tensor, packed.data()); !status.ok()) return status;
    device_.upload(dst, packed.data(), packed.size());
    return {};
  }

  Expected<bool> pack_random(const TensorView& shape, uint64_t seed, float deviation, void* dst) const override {
    const auto form = weight_form(shape);
    if (!form) return fail(form.error());
    if (shape.shape[1] % 32 != 0) return false;
    device_.make_current();
    CUDA_CHECK(fill_random(*form, shape.shape[0], shape.shape[1], seed, deviation, dst, cudaStreamPerThread));
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    return true;
  }

  size_t scratch_bytes(const BlockList& blocks, const StepLimits& limits) const override {
    const auto shape = shape_of(blocks, limits);
    return shape ? CudaScratch(nullptr, *shape).bytes : 0;  // prepare says why not
  }
  Status prepare(const BlockList& blocks, const StepLimits& limits, void* scratch) override;
  Status bind(const StepBinding& binding, Stream& stream) override;
  std::vector<std::string> decisions() const override;
  StepEvents run_step(Stream& stream, const StepLaunch& step) override;
  const float* last_logits() const override;

 private:
  struct Graph {
    int rows;
    cudaGraphExec_t exec;
  };

  Expected<CudaShape> shape_of(const BlockList& blocks, const StepLimits& limits) const;
  // What the tuning table says of the group's shape, or the defaults.
  Status tune(GroupShape& group) const;
  Status prepare_gemms();
  Status capture(int rows, cudaStream_t stream);
  void queue_step(const StepShape& step, cudaStream_t stream);
  void queue_blocks(const StepShape& step, cudaStream_t stream);

  // A block of a step with few tokens (own kernels on stored weights, norms by factor) or many (cuBLASLt).
  void run(const EmbedBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const AttnInBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const AttentionBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const AttnOutBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const MlpBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  void run(const HeadBlock& block, const StepShape& step, size_t index, cudaStream_t stream);
  // Whether group g's decode and extend attention run side by side in this step; decode then leaves extend room.
  bool beside(const StepShape& step, int g) const {
    return step.num_decode_rows > 0 && !step.decode_only() &&
           step.extend_tiles[g] * shape_.groups[g].kv_heads >= shape_.groups[g].mixed.beside_tiles;
  }
  int decode_grid(const StepShape& step, int g) const {
    const GroupShape& group = shape_.groups[g];
    return beside(step, g) ? group.mixed.decode_ctas : group.decode_ctas;
  }
  DecodeTuning decode_tuning(const StepShape& step, int g) const {
    DecodeTuning tuning = shape_.groups[g].decode;
    if (beside(step, g)) tuning.chunks_per_cta = shape_.groups[g].mixed.chunks_per_cta;
    return tuning;
  }
  // Whether products of so many tokens with these matrices run on own kernels.
  bool fused(std::initializer_list<const Weight*> weights, int tokens) const;
  // A product on own kernels; x lies in `order`. Returns the number of parts of out_squares.
  int linear(LinearParams params, XOrder order, cudaStream_t stream);
  // The order in which a projection of `w` takes x.
  XOrder order_for(const Weight& w, int tokens) const {
    return tokens > kMaxLinearTokens && fused({&w}, tokens) ? x_order(*form_of(w.format)) : XOrder::kBf16;
  }
  void gemm(const __nv_bfloat16* x, int tokens, const Weight& w, void* out, bool fp32_out, int64_t out_stride, bool accumulate, cudaStream_t stream);
  // x += post_norm(W in): with `in` as it is.
  void residual(const Weight& w, const Norm& post_norm, const __nv_bfloat16* in, XOrder in_order, const StepShape& step, size_t index,
                cudaStream_t stream);
  StepRows rows_of(const StepShape& step) const { return {binding_.targets.rows, step.num_rows, step.num_decode_rows, step.num_tokens}; }
  // The norm in front of the block after `index`, which the residual before it prepares where that block's projection applies the
  // factor; `order`: in which it takes x.
  NextNorm next_norm(size_t index, const StepShape& step, XOrder* order = nullptr) const;
  // x of a block's first projections, on own kernels: prepared by the residual before, or normalised now. Returns its order.
  XOrder take_normed(LinearParams& params, const Norm& norm, int64_t hidden, const StepShape& step, cudaStream_t stream);

  CudaDevice& device_;
  BackendOptions options_;
  const AttentionPath& attention_;
  const BlockList* blocks_ = nullptr;
  CudaShape shape_;
  std::optional<CudaScratch> scratch_;
  std::unique_ptr<GemmLt> gemm_;
  StepBinding binding_{};
  StepStamp* stamps_ = nullptr;
  BeginParams begin_{};
  std::vector<Graph> graphs_;      // by rows, ascending
  cudaStream_t side_ = nullptr;    // extend attention beside decode attention
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  // What the last residual left in scratch_->normed: nothing, or x * weight in an order, and its squares in parts.
  bool prepared_ = false;
  XOrder prepared_order_ = XOrder::kBf16;
  int num_squares_ = 0;
  int attention_index_[kMaxKvGroups] = {};  // launches of each group's plan so far in the step that is queued
  uint64_t launches_ = 0;
  mutable std::vector<float> host_logits_;
};

Expected<CudaShape> CudaBackend::shape_of(const BlockList& blocks, const StepLimits& limits) const {
  const auto refuse = [](const std::string& why) { return fail(StatusCode::kUnsupported, "the CUDA backend: " + why); };
  CudaShape s;
  s.widths = block_widths(blocks);
  s.max_extend_parts = attention_.max_extend_parts;
  s.limits = limits;
  s.logits_stride = (s.widths.vocab + 3) / 4 * 4;
  if (limits.vocab > kMaxSampledVocab) return refuse("a vocabulary of more than " + std::to_string(kMaxSampledVocab));
  if (limits.max_rows > kMaxPlanRows) return refuse("more than " + std::to_string(kMaxPlanRows) + " rows");
  const auto quantised = [&](const Weight& w) {
    if (form_of(w.format) != WeightForm::kBf16) s.dequantized = std::max(s.dequantized, w.rows * w.cols);
  };
  int launches[kMaxKvGroups] = {};
  for (const LayerBlock& block : blocks) {
    if (const auto* in = std::get_if<AttnInBlock>(&block)) {
      for (const Weight* w : {&in->q, &in->k, &in->v}) quantised(*w);
    } else if (const auto* out = std::get_if<AttnOutBlock>(&block)) {
      quantised(out->o), s.has_post_norm |= out->post_norm.weight != nullptr;
    } else if (const auto* mlp = std::get_if<MlpBlock>(&block)) {
      for (const Weight* w : {&mlp->gate, &mlp->up, &mlp->down}) {
        quantised(*w);
      }
      s.has_post_norm |= mlp->post_norm.weight != nullptr;
    } else if (const auto* head = std::get_if<HeadBlock>(&block)) {
      quantised(head->head);
    } else if (const auto* a = std::get_if<AttentionBlock>(&block)) {
      if (!attention_.supported(a->head_dim, a->q_heads, a->kv_heads)) {
        return refuse("attention of " + std::to_string(a->q_heads) + " query and " + std::to_string(a->kv_heads) +
                      " KV heads of " + std::to_string(a->head_dim) + " dims");
      }
      GroupShape& g = s.groups[a->group];
      if (g.q_heads != 0 && (g.q_heads != a->q_heads || g.head_dim != a->head_dim)) return refuse("layers of one KV group differ in shape");
      g.q_heads = a->q_heads, g.kv_heads = a->kv_heads, g.head_dim = a->head_dim, g.window = a->window;
      s.num_groups = std::max(s.num_groups, a->group + 1);
      if (++launches[a->group] > kMaxLaunches) return refuse("more than " + std::to_string(kMaxLaunches) + " layers in a KV group");
    }
  }
  for (int g = 0; g < s.num_groups; ++g) {
    GroupShape& group = s.groups[g];
    device_.make_current();
    group.decode_ctas = attention_.decode_ctas(group.head_dim, group.gqa_ratio());
    if (Status status = tune(group); !status.ok()) return fail(status);
    const int units = limits.max_rows * group.kv_heads;
    group.max_chunks = std::max({max_decode_chunks(group.decode_ctas, units, group.decode.chunks_per_cta),
                                 max_decode_chunks(group.mixed.decode_ctas, units, group.mixed.chunks_per_cta), units * options_.kv_splits});
  }
  return s;
}

Status CudaBackend::tune(GroupShape& group) const {
  const TuningTable table = attention_.tuned ? options_.tuning : TuningTable{};
  const TuningKey key{.head_dim = padded_dim(group.head_dim), .group = group.gqa_ratio() <= 8 ? 8 : 16, .window = group.window > 0};
  group.decode = tuning_for(table.decode, key, DecodeTuning{});
  group.mixed = tuning_for(table.mixed, key, attention_.mixed_defaults(group.head_dim, group.gqa_ratio()));
  if (group.mixed.decode_ctas <= group.decode_ctas) return {};
  return {StatusCode::kInvalidArgument, table.source + ": mixed.decode_ctas of head_dim " + std::to_string(key.head_dim) + ": " +
                                            std::to_string(group.mixed.decode_ctas) + ", but the GPU holds " +
                                            std::to_string(group.decode_ctas) + " CTAs of that kernel at once"};
}

Status CudaBackend::prepare(const BlockList& blocks, const StepLimits& limits, void* scratch) {
  auto shape = shape_of(blocks, limits);
  if (!shape) return shape.error();
  blocks_ = &blocks;
  shape_ = *shape;
  scratch_.emplace(scratch, shape_);
  auto gemm = GemmLt::create();
  if (!gemm) return gemm.error();
  gemm_ = std::move(*gemm);
  gemm_->set_workspace(scratch_->gemm);
  CUDA_CHECK(prepare_linear());
  if (has_hopper_code()) CUDA_CHECK(prepare_linear_wide());
  for (int g = 0; g < shape_.num_groups; ++g) CUDA_CHECK(attention_.prepare(shape_.groups[g].head_dim));
  CUDA_CHECK(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking));
  for (cudaEvent_t* event : {&fork_, &join_}) CUDA_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  return prepare_gemms();
}

Status CudaBackend::prepare_gemms() {
  const int tokens = shape_.limits.max_step_tokens, rows = shape_.limits.max_rows;
  Status status;
  const auto add = [&](const Weight& w, bool fp32_out, int max_tokens) {
    if (status.ok()) status = gemm_->prepare(static_cast<int>(w.rows), static_cast<int>(w.cols), fp32_out, max_tokens);
  };
  for (const LayerBlock& block : *blocks_) {
    if (const auto* in = std::get_if<AttnInBlock>(&block)) {
      for (const Weight* w : {&in->q, &in->k, &in->v}) add(*w, true, tokens);
    } else if (const auto* out = std::get_if<AttnOutBlock>(&block)) {
      add(out->o, true, tokens);
    } else if (const auto* mlp = std::get_if<MlpBlock>(&block)) {
      add(mlp->gate, false, tokens), add(mlp->up, false, tokens), add(mlp->down, true, tokens);
    } else if (const auto* head = std::get_if<HeadBlock>(&block)) {
      add(head->head, true, rows);
    }
  }
  return status;
}

Status CudaBackend::bind(const StepBinding& binding, Stream& stream) {
  binding_ = binding;
  stamps_ = static_cast<StepStamp*>(device_.alloc_pinned(sizeof(StepStamp) * kStagingRing));
  if (stamps_ == nullptr) return {StatusCode::kResourceExhausted, "no pinned memory for the step stamps"};
  begin_.targets = binding.targets;
  std::copy_n(binding.slabs, kStagingRing, begin_.slabs);
  begin_.state = scratch_->state;
  begin_.dummy_slot = shape_.limits.max_rows;  // its table row points at block 0
  begin_.num_tiles = shape_.num_groups;
  for (int g = 0; g < shape_.num_groups; ++g) {
    const GroupShape& group = shape_.groups[g];
    begin_.tiles[g] = {scratch_->groups[g].tile_start, group.gqa_ratio(), attention_.extend_tile_rows(group.head_dim)};
  }
  const cudaStream_t s = device_.cuda_stream(stream);
  // Every product's algorithm once, outside of a graph: cuBLASLt loads a kernel at its first call, and a step that met it would
  // stand for ten milliseconds (hazard 7). The rows are zero: idle, they touch no KV.
  const int64_t positions = int64_t{shape_.limits.max_rows} * shape_.limits.context_length;
  const auto most_tokens = static_cast<int>(std::min<int64_t>(shape_.limits.max_step_tokens, positions));
  for (int tokens = 1; tokens <= most_tokens; tokens = GemmLt::bucket(tokens) + 1) {
    const int rows = std::min(tokens, shape_.limits.max_rows);
    queue_blocks({.num_rows = rows, .num_decode_rows = rows, .num_tokens = tokens}, s);
  }
  CUDA_CHECK(cudaStreamSynchronize(s));
  const int most = std::min(options_.max_graph_rows, shape_.limits.max_rows);
  for (int rows = 1; rows <= most; rows = rows < 8 ? rows * 2 : rows + 8) {
    if (Status status = capture(rows, s); !status.ok()) return status;
  }
  if (most > 0 && graphs_.back().rows < most) return capture(most, s);
  return {};
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
    return {StatusCode::kResourceExhausted, "the decode graph of " + std::to_string(rows) + " rows: " + cudaGetErrorString(error)};
  }
  CUDA_CHECK(cudaGraphUpload(exec, stream));
  graphs_.push_back({rows, exec});
  return {};
}

StepEvents CudaBackend::run_step(Stream& stream, const StepLaunch& step) {
  CHECK(step.launch == launches_++);  // the device counts along
  const cudaStream_t s = device_.cuda_stream(stream);
  const auto graph = std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& g) { return g.rows >= step.num_rows; });
  if (step.num_rows == step.num_decode_rows && graph != graphs_.end()) {
    CUDA_CHECK(cudaGraphLaunch(graph->exec, s));
  } else {
    StepShape shape{.num_rows = step.num_rows, .num_decode_rows = step.num_decode_rows, .num_tokens = step.num_tokens};
    if (options_.fold_decode && !shape.decode_only()) shape.num_decode_rows = 0;
    for (int g = 0; g < shape_.num_groups; ++g) {
      const GroupShape& group = shape_.groups[g];
      for (int r = shape.num_decode_rows; r < step.num_rows; ++r) {
        const BatchRow& row = step.rows[r];
        const int tiles = extend_tiles(row.q_len, group.gqa_ratio(), attention_.extend_tile_rows(group.head_dim));
        shape.extend_tiles[g] += tiles;
        shape.extend_kv_tiles[g] += int64_t{tiles} * (row.kv_len - row.q_len / 2 + kBlockTokens - 1) / kBlockTokens;
      }
    }
    queue_step(shape, s);
  }
  const StepStamp* stamp = stamps_ + step.launch % kStagingRing;
  return {.begun = device_.stamped_event(stamp, step.launch, true), .done = device_.stamped_event(stamp, step.launch, false)};
}

void CudaBackend::queue_step(const StepShape& step, cudaStream_t stream) {
  BeginParams begin = begin_;
  begin.padded_rows = step.padded ? step.num_rows : 0;
  begin.first_extend_row = step.num_decode_rows;
  CUDA_CHECK(begin_step(begin, stream));
  queue_blocks(step, stream);
  CUDA_CHECK(run_sampler({.logits = scratch_->logits, .vocab = shape_.limits.vocab, .vocab_stride = shape_.logits_stride,
                          .rows = binding_.targets.rows, .num_rows = step.num_rows, .state = binding_.batch.state,
                          .sampled_ring = binding_.sampled, .ring = kStagingRing, .ring_stride = binding_.max_rows,
                          .step = &scratch_->state->launch, .scratch = scratch_->sampler}, stream));
  CUDA_CHECK(end_step(scratch_->state, stamps_, stream));
}

void CudaBackend::queue_blocks(const StepShape& step, cudaStream_t stream) {
  for (int g = 0; g < shape_.num_groups; ++g) {
    attention_index_[g] = 0;
    if (step.num_decode_rows == 0) continue;
    const KvGroupView& kv = binding_.batch.groups[g];
    plan_decode(scratch_->groups[g].plan, binding_.targets.rows, step.num_decode_rows, kv.block_table, kv.table_stride,
                shape_.groups[g].kv_heads, shape_.groups[g].window, decode_grid(step, g), options_.kv_splits, decode_tuning(step, g), stream);
  }
  for (size_t i = 0; i < blocks_->size(); ++i) {
    std::visit([&](const auto& block) { run(block, step, i, stream); }, (*blocks_)[i]);
  }
}

bool CudaBackend::fused(std::initializer_list<const Weight*> weights, int tokens) const {
  return std::all_of(weights.begin(), weights.end(), [&](const Weight* w) { return tokens <= most_linear_tokens(*form_of(w->format)); });
}

int CudaBackend::linear(LinearParams params, XOrder order, cudaStream_t stream) {
  if (params.tokens <= kMaxLinearTokens) {
    CUDA_CHECK(run_linear(params, device_.sm_count(), stream));
    return linear_ctas(params, device_.sm_count());
  }
  const XOrder wanted = x_order(params.matrix[0].form);
  if (order != wanted) {
    CHECK(order == XOrder::kBf16);
    CUDA_CHECK(order_tokens(params.x, params.tokens, params.matrix[0].cols, wanted, scratch_->ordered, stream));
    params.x = scratch_->ordered;
  }
  params.squares_stride = params.tokens;
  CUDA_CHECK(run_linear_wide(params, device_.sm_count(), stream));
  return linear_wide_parts(params);
}

NextNorm CudaBackend::next_norm(size_t index, const StepShape& step, XOrder* order) const {
  const auto prepared = [&](const Norm& norm, std::initializer_list<const Weight*> weights) -> NextNorm {
    if (!fused(weights, step.num_tokens)) return {};
    const Weight& first = **weights.begin();
    const bool alike = std::all_of(weights.begin(), weights.end(), [&](const Weight* w) { return form_of(w->format) == form_of(first.format); });
    if (order != nullptr && alike) *order = order_for(first, step.num_tokens);
    return {norm.weight, scratch_->normed, scratch_->squares};
  };
  for (++index; index < blocks_->size(); ++index) {
    const LayerBlock& block = (*blocks_)[index];
    if (const auto* in = std::get_if<AttnInBlock>(&block)) return prepared(in->norm, {&in->q, &in->k, &in->v});
    if (const auto* mlp = std::get_if<MlpBlock>(&block)) return prepared(mlp->norm, {&mlp->gate, &mlp->up});
    if (const auto* head = std::get_if<HeadBlock>(&block)) {
      return step.num_rows == step.num_tokens ? prepared(head->norm, {&head->head}) : NextNorm{};  // every token is its row's last
    }
  }
  return {};
}

XOrder CudaBackend::take_normed(LinearParams& params, const Norm& norm, int64_t hidden, const StepShape& step, cudaStream_t stream) {
  params.x = scratch_->normed;
  if (prepared_) {
    params.squares = scratch_->squares, params.num_squares = num_squares_, params.eps = norm.eps;
    return prepared_order_;
  }
  CUDA_CHECK(rms_norm(scratch_->x, step.num_tokens, static_cast<int>(hidden), norm.weight, norm.eps, scratch_->normed, stream));
  return XOrder::kBf16;
}

void CudaBackend::gemm(const __nv_bfloat16* x, int tokens, const Weight& w, void* out, bool fp32_out, int64_t out_stride,
                       bool accumulate, cudaStream_t stream) {
  const Matrix matrix = matrix_of(w);
  const auto* values = static_cast<const __nv_bfloat16*>(matrix.values);
  if (matrix.form != WeightForm::kBf16) {
    CUDA_CHECK(dequantize(matrix, scratch_->dequantized, stream));
    values = scratch_->dequantized;
  }
  CUDA_CHECK(gemm_->run(x, tokens, values, matrix.rows, matrix.cols, out, fp32_out, out_stride, accumulate, stream));
}

void CudaBackend::run(const EmbedBlock& block, const StepShape& step, size_t index, cudaStream_t stream) {
  const NextNorm next = next_norm(index, step);
  CUDA_CHECK(embed(rows_of(step), binding_.batch.state, matrix_of(block.table), block.scale, scratch_->x, next, stream));
  prepared_ = next.next != nullptr, prepared_order_ = XOrder::kBf16, num_squares_ = 1;
}

void CudaBackend::run(const AttnInBlock& b, const StepShape& step, size_t, cudaStream_t stream) {
  const bool own = fused({&b.q, &b.k, &b.v}, step.num_tokens);
  const int64_t stride = b.q.rows + b.k.rows + b.v.rows;
  if (own) {
    LinearParams p{.matrix = {}, .num_matrices = 3, .tokens = step.num_tokens, .out = scratch_->qkv, .out_stride = stride};
    p.matrix[0] = matrix_of(b.q), p.matrix[1] = matrix_of(b.k), p.matrix[2] = matrix_of(b.v);
    const XOrder order = take_normed(p, b.norm, b.q.cols, step, stream);
    if (matrices_unsupported(p) == nullptr) {
      linear(p, order, stream);
    } else {  // formats differ (K quants keep v in more bits): one launch each
      const Matrix all[3] = {p.matrix[0], p.matrix[1], p.matrix[2]};
      p.num_matrices = 1;
      for (const Matrix& m : all) {
        p.matrix[0] = m;
        linear(p, order, stream);
        p.out += m.rows;
      }
    }
  } else {
    CUDA_CHECK(rms_norm(scratch_->x, step.num_tokens, static_cast<int>(b.q.cols), b.norm.weight, b.norm.eps, scratch_->normed, stream));
    float* out = scratch_->qkv;
    for (const Weight* w : {&b.q, &b.k, &b.v}) {
      gemm(scratch_->normed, step.num_tokens, *w, out, true, stride, false, stream);
      out += w->rows;
    }
  }
  const KvGroupView& kv = binding_.batch.groups[b.group];
  auto* pool = reinterpret_cast<__nv_bfloat16*>(kv.pool) + kv_tile_offset(kv.num_blocks, kv.kv_heads, padded_dim(kv.head_dim), b.layer, 0, 0);
  CUDA_CHECK(finish_qkv(rows_of(step),
                        {.qkv = scratch_->qkv, .q_bias = own ? nullptr : b.q.bias, .k_bias = own ? nullptr : b.k.bias,
                         .v_bias = own ? nullptr : b.v.bias, .q_norm = b.q_norm.weight, .k_norm = b.k_norm.weight, .q_eps = b.q_norm.eps,
                         .k_eps = b.k_norm.eps, .inv_freq = b.rope.inv_freq, .rotary_dim = b.rope.rotary_dim, .rope_scale = b.rope.scale,
                         .q_heads = b.q_heads, .kv_heads = b.kv_heads, .head_dim = b.head_dim, .q = scratch_->q, .pool = pool,
                         .block_table = kv.block_table, .table_stride = kv.table_stride},
                        stream));
}

void CudaBackend::run(const AttentionBlock& b, const StepShape& step, size_t, cudaStream_t stream) {
  const KvGroupView& kv = binding_.batch.groups[b.group];
  const CudaScratch::Group& scratch = scratch_->groups[b.group];
  const auto* pool = reinterpret_cast<const __nv_bfloat16*>(kv.pool) + kv_tile_offset(kv.num_blocks, kv.kv_heads, padded_dim(kv.head_dim), b.layer, 0, 0);
  const bool both = beside(step, b.group);
  if (both) {  // extend waits for the fork, so that decode's CTAs are in place before it fills the GPU
    CUDA_CHECK(cudaEventRecord(fork_, stream));
    CUDA_CHECK(cudaStreamWaitEvent(side_, fork_, 0));
  }
  if (step.num_decode_rows > 0) {
    CUDA_CHECK(attention_.run_decode({.q = scratch_->q, .out = scratch_->attended, .pool = pool, .block_table = kv.block_table, .table_stride = kv.table_stride,
                           .rows = binding_.targets.rows, .plan = scratch.plan, .q_heads = b.q_heads, .kv_heads = b.kv_heads, .head_dim = b.head_dim,
                           .window = b.window, .scale = b.scale, .softcap = b.softcap, .sinks = b.sinks, .partial_out = scratch.partial_out,
                           .partial_ml = scratch.partial_ml, .done = scratch.done,
                           .epoch = reinterpret_cast<const unsigned long long*>(&scratch_->state->next_launch), .launch_index = attention_index_[b.group]++},
                          decode_grid(step, b.group), stream));
  }
  if (!step.decode_only()) {
    const ExtendSplit split = attention_.extend_split(b.head_dim, step.extend_tiles[b.group] * b.kv_heads, step.extend_kv_tiles[b.group] * b.kv_heads,
                                           b.window, device_.sm_count(), both);
    CUDA_CHECK(attention_.run_extend({.q = scratch_->q, .out = scratch_->attended, .pool = pool, .block_table = kv.block_table, .table_stride = kv.table_stride,
                                  .rows = binding_.targets.rows + step.num_decode_rows, .tile_start = scratch.tile_start,
                                  .num_rows = step.num_rows - step.num_decode_rows, .num_tiles = step.extend_tiles[b.group], .q_heads = b.q_heads,
                                  .kv_heads = b.kv_heads, .head_dim = b.head_dim, .window = b.window, .scale = b.scale, .softcap = b.softcap,
                                  .sinks = b.sinks, .split = split, .partial = scratch_->extend_partial, .arrivals = scratch_->arrivals},
                                 both ? side_ : stream));
  }
  if (both) {
    CUDA_CHECK(cudaEventRecord(join_, side_));
    CUDA_CHECK(cudaStreamWaitEvent(stream, join_, 0));
  }
}

void CudaBackend::residual(const Weight& w, const Norm& post_norm, const __nv_bfloat16* in, XOrder in_order, const StepShape& step,
                           size_t index, cudaStream_t stream) {
  const int hidden = static_cast<int>(w.rows);
  XOrder order = XOrder::kBf16;
  NextNorm next = next_norm(index, step, &order);
  const bool after = post_norm.weight != nullptr;
  if (fused({&w}, step.num_tokens)) {
    LinearParams p{.matrix = {}, .out_kind = after ? LinearOut::kStore : LinearOut::kResidual, .x = in, .tokens = step.num_tokens,
                   .out = after ? scratch_->y : scratch_->x, .out_stride = hidden, .next_norm = next.weight, .next = next.next,
                   .next_order = order, .out_squares = next.squares};
    p.matrix[0] = matrix_of(w);
    num_squares_ = linear(p, in_order, stream);
  } else {
    float* out = after ? scratch_->y : scratch_->x;
    gemm(in, step.num_tokens, w, out, true, hidden, !after, stream);
    if (w.bias != nullptr) CUDA_CHECK(add_bias(out, step.num_tokens, hidden, w.bias, stream));
    if (!after) next = {};  // the block after normalises for itself
  }
  if (after) {
    CUDA_CHECK(add_post_norm(scratch_->y, step.num_tokens, hidden, post_norm.weight, post_norm.eps, scratch_->x, next, stream));
    num_squares_ = 1, order = XOrder::kBf16;
  }
  prepared_ = next.next != nullptr, prepared_order_ = order;
}

void CudaBackend::run(const AttnOutBlock& b, const StepShape& step, size_t index, cudaStream_t stream) {
  residual(b.o, b.post_norm, scratch_->attended, XOrder::kBf16, step, index, stream);
}

void CudaBackend::run(const MlpBlock& b, const StepShape& step, size_t index, cudaStream_t stream) {
  const bool gelu = b.activation == Activation::kGeluTanh;
  const int width = static_cast<int>(b.gate.rows);
  LinearParams p{.matrix = {}, .num_matrices = 2, .out_kind = LinearOut::kGated, .tokens = step.num_tokens, .gated = scratch_->gated, .gelu = gelu};
  p.matrix[0] = matrix_of(b.gate), p.matrix[1] = matrix_of(b.up);
  if (fused({&b.gate, &b.up}, step.num_tokens) && matrices_unsupported(p) == nullptr) {
    p.next_order = order_for(b.down, step.num_tokens);
    linear(p, take_normed(p, b.norm, b.gate.cols, step, stream), stream);
  } else {
    CUDA_CHECK(rms_norm(scratch_->x, step.num_tokens, static_cast<int>(b.gate.cols), b.norm.weight, b.norm.eps, scratch_->normed, stream));
    gemm(scratch_->normed, step.num_tokens, b.gate, scratch_->gate_up, false, 2 * width, false, stream);
    gemm(scratch_->normed, step.num_tokens, b.up, scratch_->gate_up + width, false, 2 * width, false, stream);
    CUDA_CHECK(gate(scratch_->gate_up, step.num_tokens, width, gelu, b.gate.bias, b.up.bias, scratch_->gated, stream));
  }
  residual(b.down, b.post_norm, scratch_->gated, p.next_order, step, index, stream);
}

void CudaBackend::run(const HeadBlock& b, const StepShape& step, size_t, cudaStream_t stream) {
  LinearParams p{.matrix = {}, .x = scratch_->last, .tokens = step.num_rows, .out = scratch_->logits, .out_stride = shape_.logits_stride, .softcap = b.softcap};
  p.matrix[0] = matrix_of(b.head);
  XOrder order = XOrder::kBf16;
  if (prepared_) {
    order = take_normed(p, b.norm, b.head.cols, step, stream);
  } else {
    CUDA_CHECK(rms_norm_last(rows_of(step), scratch_->x, static_cast<int>(b.head.cols), b.norm.weight, b.norm.eps, scratch_->last, stream));
  }
  if (fused({&b.head}, step.num_rows)) return void(linear(p, order, stream));
  gemm(scratch_->last, step.num_rows, b.head, scratch_->logits, true, shape_.logits_stride, false, stream);
  if (b.softcap > 0) CUDA_CHECK(soft_cap(scratch_->logits, step.num_rows * shape_.logits_stride, b.softcap, stream));
}

std::vector<std::string> CudaBackend::decisions() const {
  std::string sizes;
  for (const Graph& graph : graphs_) sizes += (sizes.empty() ? "" : ", ") + std::to_string(graph.rows);
  return {"projections of up to " + std::to_string(most_linear_tokens(WeightForm::kBf16)) + " tokens (quantised " +
              std::to_string(most_linear_tokens(WeightForm::kFp8)) + "): own kernels on stored weights, norms by factor, epilogues fused",
          "projections of more tokens: cuBLASLt in bf16; quantised matrices are widened into scratch, one at a time",
          std::string("attention decode: ") + attention_.decode + ", " + (options_.kv_splits > 0 ? std::to_string(options_.kv_splits) + " splits (fixed)" : std::string("splits planned on the device from effective lengths")),
          std::string("attention extend: ") + attention_.extend + (options_.fold_decode ? "; decode rows of mixed steps too (mixed fold)" : "; beside the decode kernel in mixed steps"),
          "attention tuning: " + (attention_.tuned ? options_.tuning.source : std::string("built-in defaults, which these kernels have alone")),
          "decode steps: captured graphs of " + (sizes.empty() ? "no size" : sizes + " rows")};
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
    CUDA_CHECK(cudaMemcpy(logits.data(), scratch_->logits + static_cast<int64_t>(r) * shape_.logits_stride, sizeof(float) * logits.size(), cudaMemcpyDeviceToHost));
    host_logits_.insert(host_logits_.end(), logits.begin(), logits.begin() + shape_.limits.vocab);
  }
  return host_logits_.data();
}

}  // namespace

std::unique_ptr<Backend> create_cuda_backend(Device& device, const BackendOptions& options) {
  return std::make_unique<CudaBackend>(static_cast<CudaDevice&>(device), options);
}

}  // namespace tailrace::cuda
