#include "model/weight_loader.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "model/model_tensors.h"

namespace tailrace {
namespace {

constexpr size_t kClaimAlign = 256;
constexpr size_t kPieceBytes = 16 << 20;  // of a large matrix, about
constexpr int64_t kPieceRows = 64;        // its rows are a multiple of: no tile of any backend has more
// What claims give where there is no device: blocks then tell what is there and what is not, and are never run.
alignas(kClaimAlign) std::byte unclaimed[1];

int64_t cols_of(const TensorView& tensor) { return tensor.shape.back(); }
int64_t values_of(const TensorView& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
}

// The packed form of a matrix, without its data.
TensorView packed_view(const std::string& name, Format format, int64_t rows, int64_t cols, MatrixRole role) {
  TensorView view;
  view.name = name;
  view.format = format;
  view.shape = {rows, cols};
  view.bytes = stored_row_bytes(format, cols) * static_cast<size_t>(rows);
  view.role = role;
  return view;
}

int64_t scale_cols_of(const MatrixSource& source) {
  return source.layout == ScaleLayout::kBlock ? kScaleBlock : source.cols;
}

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config, const Backend& backend,
                           Device* device, std::optional<uint64_t> dummy_seed)
    : checkpoint_(checkpoint),
      backend_(backend),
      device_(device),
      config_(config),
      dummy_seed_(dummy_seed) {
  for (const ModelTensor& tensor : model_tensors(config)) {
    shapes_.emplace(tensor.name, tensor.shape);
    if (!dummy_seed_ || tensor.shape.size() == 2) continue;
    TensorView view;
    view.name = tensor.name;
    view.format = Format::kBF16;
    view.shape = tensor.shape;
    view.bytes = stored_row_bytes(view.format, values_of(view));
    dummies_.emplace(tensor.name, std::move(view));
  }
}

void WeightLoader::fail_once(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

const TensorView* WeightLoader::find(const std::string& name) {
  const TensorView* tensor = nullptr;
  if (dummy_seed_) {
    auto it = dummies_.find(name);
    if (it != dummies_.end()) tensor = &it->second;
  } else {
    tensor = checkpoint_.find(name);
  }
  if (!tensor) fail_once(Status(StatusCode::kDataLoss, checkpoint_.path() + ": tensor " + name + " is missing"));
  return tensor;
}

void* WeightLoader::claim(size_t bytes) {
  bytes_ += (bytes + kClaimAlign - 1) / kClaimAlign * kClaimAlign;
  if (!device_) return unclaimed;
  void* memory = device_->alloc_device(bytes);
  if (!memory) {
    fail_once(Status(StatusCode::kResourceExhausted,
                     "the weights need more memory than there is (" + std::to_string(bytes_ >> 20) + " MiB so far)"));
  }
  return memory;
}

float* WeightLoader::claim_values(int64_t count) {
  const size_t bytes = sizeof(float) * static_cast<size_t>(count);
  bytes_by_format_["F32"] += bytes;
  return static_cast<float*>(claim(bytes));
}

// Null after a fault.
std::shared_ptr<const MatrixSource> WeightLoader::find_source(const std::string& name) {
  const auto shape = shapes_.find(name);
  CHECK(shape != shapes_.end() && shape->second.size() == 2);
  const int64_t rows = shape->second[0], cols = shape->second[1];
  TensorFinder finder(checkpoint_);
  MatrixSource source = dummy_seed_ ? dummy_matrix(quantization_, name, rows, cols)
                                    : find_matrix(finder, quantization_, name, rows, cols);
  if (!finder.ok()) {
    fail_once({StatusCode::kDataLoss, checkpoint_.path() + ": " + finder.fault().status().message()});
    return nullptr;
  }
  const FormatTraits traits = format_traits(source.format);
  const bool wide = traits.block_elems == 1 && traits.block_bytes > 1;
  if (wide && is_requantized(quantization_, name, head_tensor(config_))) requantize_to_fp8(&source);
  return std::make_shared<const MatrixSource>(std::move(source));
}

Weight WeightLoader::matrix(const std::string& name, const std::string& bias_name, MatrixRole role) {
  if (auto it = matrices_.find(name); it != matrices_.end()) return it->second;
  const std::shared_ptr<const MatrixSource> source = find_source(name);
  if (!source) return {};
  Weight weight = claim_matrix(source, role, source->rows, {});
  if (!bias_name.empty()) weight.bias = vector(bias_name);
  matrices_.emplace(name, weight);
  return weight;
}

std::pair<Weight, Weight> WeightLoader::halves_of_heads(const std::string& name, int64_t head_rows) {
  const std::shared_ptr<const MatrixSource> source = find_source(name);
  if (!source) return {};
  CHECK(source->rows % (2 * head_rows) == 0);
  const auto half = [&](int64_t first) {
    return claim_matrix(source, MatrixRole::kProjection, source->rows / 2,
                        {.run = head_rows, .step = 2 * head_rows, .first = first});
  };
  const Weight first = half(0);
  return {first, half(head_rows)};
}

Weight WeightLoader::claim_matrix(const std::shared_ptr<const MatrixSource>& source, MatrixRole role, int64_t rows,
                                  const RowRuns& runs) {
  TensorView view = packed_view(source->values.name, source->format, rows, source->cols, role);
  view.data = source->values.data;
  view.rope_interleaved = source->values.rope_interleaved, view.head_dim = source->values.head_dim;
  const auto bytes = backend_.packed_bytes(view);
  if (!bytes) {
    fail_once(bytes.error());
    return {};
  }
  Weight weight{.format = source->format, .rows = rows, .cols = source->cols};
  void* memory = claim(*bytes);
  weight.data = memory;
  bytes_by_format_[format_traits(source->format).name] += *bytes;
  if (source->requantized) requantized_bytes_ += *bytes;
  float* scales = nullptr;
  if (source->scaled()) {
    scales = claim_values(rows * scales_per_row(source->layout, source->cols));
    weight.scale = scales, weight.scale_cols = scale_cols_of(*source);
  }
  const bool with_rows = source->requantized && !dummy_seed_;  // their scales are found as they are packed
  add_pieces(view, static_cast<std::byte*>(memory), source, runs, with_rows ? scales : nullptr);
  if (source->scaled() && !with_rows) add_scales(source, scales, runs);
  return weight;
}

// Packed rows of single values lie one behind the other in any backend, so large matrices of them are read and packed
// in pieces: on several threads, and without memory for the whole.
void WeightLoader::add_pieces(const TensorView& whole, std::byte* packed,
                              const std::shared_ptr<const MatrixSource>& source, const RowRuns& runs,
                              float* scales) {
  const int64_t rows = whole.shape[0];
  const Format stored = scales != nullptr ? source->values.format : whole.format;
  const size_t row_bytes = stored_row_bytes(stored, cols_of(whole));
  const bool whole_only = dummy_seed_ || device_ == nullptr || packed == nullptr || runs.run > 0 ||
                          whole.rope_interleaved || format_traits(whole.format).block_elems != 1 ||
                          row_bytes * static_cast<size_t>(rows) <= kPieceBytes;
  const int64_t step = whole_only ? rows
                                  : std::max<int64_t>(kPieceRows, static_cast<int64_t>(kPieceBytes / row_bytes) /
                                                                      kPieceRows * kPieceRows);
  for (int64_t first = 0; first < rows; first += step) {
    TensorView piece = whole;
    piece.shape[0] = std::min(step, rows - first);
    piece.bytes = stored_row_bytes(whole.format, cols_of(whole)) * static_cast<size_t>(piece.shape[0]);
    std::byte* to = packed;
    if (!whole_only) packed += *backend_.packed_bytes(piece);
    piece.format = stored;
    piece.bytes = row_bytes * static_cast<size_t>(piece.shape[0]);
    if (first > 0) piece.data += row_bytes * static_cast<size_t>(first);
    jobs_.push_back({.tensor = piece, .packed = to, .values = scales, .bytes = piece.bytes, .matrix = source,
                     .rows = runs, .first_row = first});
    if (scales != nullptr) scales += piece.shape[0];
  }
}

void WeightLoader::add_scales(const std::shared_ptr<const MatrixSource>& source, float* memory, const RowRuns& runs) {
  jobs_.push_back(
      {.tensor = source->scales, .values = memory, .bytes = source->scales.bytes, .matrix = source, .rows = runs});
}

Expected<ExpertSource> WeightLoader::find_part(int32_t layer, ExpertPart part) const {
  if (dummy_seed_) return dummy_experts(config_, layer, part);
  return find_experts(checkpoint_, config_, layer, part);
}

// False after a fault, too.
bool WeightLoader::join(const std::string& shared, ExpertPart part, ExpertSource* source) {
  const auto matrix = find_source(shared + "." + projection_name(part) + ".weight");
  return matrix && join_shared_expert(*matrix, source);
}

bool WeightLoader::joins_shared_expert(int32_t layer, const std::string& shared) {
  if (!backend_.joins_shared_expert(config_.experts, config_.experts_per_token)) return false;
  for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown}) {
    Expected<ExpertSource> source = find_part(layer, part);
    if (!source || !join(shared, part, &*source)) return false;
  }
  return true;
}

ExpertWeights WeightLoader::experts(int32_t layer, ExpertPart part, const std::string& shared) {
  Expected<ExpertSource> found = find_part(layer, part);
  if (!found) {
    fail_once(found.error());
    return {};
  }
  if (!shared.empty()) CHECK(join(shared, part, &*found));
  const auto source = std::make_shared<const ExpertSource>(std::move(*found));
  const std::string& name = source->each.empty() ? source->values.name : source->each[0].values.name;
  const TensorView shape = packed_view(name, source->format, source->rows, source->cols, MatrixRole::kExpert);
  const auto bytes = backend_.packed_bytes(shape);
  if (!bytes) {
    fail_once(bytes.error());
    return {};
  }
  const size_t stride = (*bytes + 63) / 64 * 64, all = stride * static_cast<size_t>(source->experts);
  auto* memory = static_cast<std::byte*>(claim(all));
  bytes_by_format_[std::string(format_traits(source->format).name) + " experts"] += all;
  ExpertWeights out{.first = {.format = source->format, .rows = source->rows, .cols = source->cols, .data = memory},
                    .count = source->experts,
                    .stride = static_cast<int64_t>(stride)};
  float* scales = nullptr;
  const int64_t scale_count =
      source->scaled() ? source->rows * scales_per_row(source->each[0].layout, source->cols) : 0;
  if (source->scaled()) {
    out.first.scale = scales = claim_values(source->experts * scale_count);
    out.first.scale_cols = scale_cols_of(source->each[0]);
  }
  for (int64_t e = 0; e < source->experts; ++e) {
    TensorView tensor = shape;
    if (!source->each.empty()) tensor.name = source->each[e].values.name;
    jobs_.push_back({.tensor = tensor, .packed = memory ? memory + stride * e : nullptr, .bytes = shape.bytes,
                     .source = source, .expert = e});
    if (!source->scaled()) continue;
    const std::shared_ptr<const MatrixSource> matrix(source, &source->each[e]);
    add_scales(matrix, scales != nullptr ? scales + e * scale_count : nullptr, {});
  }
  if (source->bias.name.empty()) return out;
  float* bias = claim_values(source->experts * source->rows);
  out.first.bias = bias;
  jobs_.push_back({.tensor = source->bias, .values = bias, .bytes = source->bias.bytes, .source = source});
  return out;
}

const float* WeightLoader::vector(const std::string& name, float add, float factor) {
  const TensorView* tensor = find(name);
  if (!tensor) return nullptr;
  float* memory = claim_values(values_of(*tensor));
  jobs_.push_back(Job{.tensor = *tensor, .values = memory, .add = add, .factor = factor, .bytes = tensor->bytes});
  return memory;
}

const float* WeightLoader::mapped_vector(const std::string& name, float (*map)(float)) {
  const float* memory = vector(name);
  if (memory != nullptr || device_ == nullptr) jobs_.back().map = map;
  return memory;
}

const float* WeightLoader::constant(const std::vector<float>& values) {
  auto* memory = static_cast<float*>(claim(sizeof(float) * values.size()));
  constants_.emplace_back(memory, values);
  return memory;
}

}  // namespace tailrace
