#include "model/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/check.h"
#include "model/dummy_values.h"
#include "model/model_tensors.h"
#include "weights/dequantize.h"

namespace tailrace {
namespace {

constexpr size_t kClaimAlign = 256;
// What claims give where there is no device: blocks then tell what is there and what is not, and are never run.
alignas(kClaimAlign) std::byte unclaimed[1];

int64_t cols_of(const TensorView& tensor) { return tensor.shape.back(); }
int64_t values_of(const TensorView& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
}

// A bias of pairwise q or k back in NeoX order, as packing does with rows: value 2i + s of a head was s * half + i.
void undo_pairwise_order(int64_t head_dim, std::vector<float>* values) {
  const std::vector<float> stored = *values;
  const int64_t half = head_dim / 2;
  for (size_t at = 0; at < stored.size(); ++at) {
    const int64_t head = static_cast<int64_t>(at) / head_dim, within = static_cast<int64_t>(at) % head_dim;
    (*values)[head * head_dim + within % 2 * half + within / 2] = stored[at];
  }
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
  if (dummy_seed_) return std::make_shared<const MatrixSource>(dummy_matrix(quantization_, name, rows, cols));
  TensorFinder finder(checkpoint_);
  MatrixSource source = find_matrix(finder, quantization_, name, rows, cols);
  if (finder.ok()) return std::make_shared<const MatrixSource>(std::move(source));
  fail_once({StatusCode::kDataLoss, checkpoint_.path() + ": " + finder.fault().status().message()});
  return nullptr;
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
  jobs_.push_back({.tensor = view, .packed = memory, .bytes = view.bytes, .matrix = source, .rows = runs});
  if (source->scaled()) {
    float* scales = claim_values(rows * scales_per_row(source->layout, source->cols));
    weight.scale = scales, weight.scale_cols = scale_cols_of(*source);
    add_scales(source, scales, runs);
  }
  return weight;
}

void WeightLoader::add_scales(const std::shared_ptr<const MatrixSource>& source, float* memory, const RowRuns& runs) {
  jobs_.push_back(
      {.tensor = source->scales, .values = memory, .bytes = source->scales.bytes, .matrix = source, .rows = runs});
}

ExpertWeights WeightLoader::experts(int32_t layer, ExpertPart part) {
  Expected<ExpertSource> found = dummy_seed_ ? dummy_experts(config_, layer, part)
                                             : find_experts(checkpoint_, config_, layer, part);
  if (!found) {
    fail_once(found.error());
    return {};
  }
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
    jobs_.push_back({.tensor = shape, .packed = memory ? memory + stride * e : nullptr, .bytes = shape.bytes,
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

Status WeightLoader::run_matrix(const Job& job) const {
  const bool expert = job.source != nullptr;
  std::vector<TensorView> stored;
  if (expert) {
    stored = job.source->stored(job.expert);
  } else {
    stored = {job.matrix->values};
    if (!job.matrix->in_place()) stored.push_back(job.matrix->block_scales);
  }
  for (const TensorView& tensor : stored) {
    if (Status status = checkpoint_.prepare(tensor); !status.ok()) return status;
  }
  TensorView rows = job.tensor;
  rows.data = stored[0].data;
  std::vector<std::byte> copied;
  if (!(expert ? job.source->in_place() : job.matrix->in_place())) {
    copied.resize(expert ? rows.bytes : job.matrix->packed_rows_bytes());
    expert ? copy_expert(*job.source, job.expert, copied.data()) : copy_matrix(*job.matrix, copied.data());
    rows.data = copied.data();
  }
  Status status = expert ? check_expert(*job.source, job.expert, rows.data) : check_numbers(*job.matrix, rows.data);
  std::vector<std::byte> picked;
  if (job.rows.run > 0) {
    const size_t row_bytes = stored_row_bytes(rows.format, cols_of(rows));
    for (int64_t row = 0; row < rows.shape[0]; ++row) {
      const std::byte* from = rows.data + row_bytes * static_cast<size_t>(job.rows.stored_row(row));
      picked.insert(picked.end(), from, from + row_bytes);
    }
    rows.data = picked.data();
  }
  if (status.ok()) status = backend_.pack(rows, job.packed);
  if (!status.ok()) return status;
  for (const TensorView& tensor : stored) checkpoint_.release(tensor);
  return {};
}

Status WeightLoader::read_floats(const TensorView& tensor, std::vector<float>* out) const {
  if (Status status = checkpoint_.prepare(tensor); !status.ok()) return status;
  const FormatTraits traits = format_traits(tensor.format);
  const auto count = static_cast<int64_t>(tensor.bytes / traits.block_bytes) * traits.block_elems;
  out->resize(static_cast<size_t>(count));
  Status status = dequantize_row(tensor.format, tensor.data, count, out->data());
  if (status.ok()) checkpoint_.release(tensor);
  return status;
}

Status WeightLoader::run_scales(const Job& job) const {
  const MatrixSource& matrix = *job.matrix;
  std::vector<float> scales = {dummy_deviation(matrix.cols) / kDummyScaledDeviation};
  if (dummy_seed_) {
    scales.assign(static_cast<size_t>(matrix.rows * scales_per_row(matrix.layout, matrix.cols)), scales[0]);
  } else {
    if (Status status = read_floats(job.tensor, &scales); !status.ok()) return status;
    const auto bad = std::find_if(scales.begin(), scales.end(), [&](float scale) {
      return !std::isfinite(scale) || (matrix.divides && !std::isfinite(1.0f / scale));
    });
    if (bad != scales.end()) {
      return {StatusCode::kDataLoss, "tensor " + printable(job.tensor.name) + ": scale " +
                                         std::to_string(bad - scales.begin()) + " is not finite" +
                                         (matrix.divides ? ", or 0" : "")};
    }
    scales = scales_of(matrix, std::move(scales));
  }
  if (job.rows.run > 0) {
    const int64_t per_row = scales_per_row(matrix.layout, matrix.cols);
    const int64_t rows = matrix.rows * job.rows.run / job.rows.step;
    for (int64_t row = 0; row < rows; ++row) {  // each comes from its own place or from behind it
      std::copy_n(scales.begin() + job.rows.stored_row(row) * per_row, per_row, scales.begin() + row * per_row);
    }
    scales.resize(static_cast<size_t>(rows * per_row));
  }
  device_->upload(job.values, scales.data(), sizeof(float) * scales.size());
  return {};
}

Status WeightLoader::upload_vector(const Job& job, std::vector<float> values) const {
  if (job.source && !dummy_seed_) values = part_of_biases(*job.source, values);
  if (job.tensor.rope_interleaved) undo_pairwise_order(job.tensor.head_dim, &values);
  for (float& value : values) value = job.map ? job.map(value) : value * job.factor + job.add;
  device_->upload(job.values, values.data(), sizeof(float) * values.size());
  return {};
}

Status WeightLoader::run_dummy(const Job& job) const {
  TensorView tensor = job.tensor;
  const bool one_of_many = job.source != nullptr || job.rows.first > 0;
  const std::string name =
      one_of_many ? tensor.name + std::to_string(job.source ? job.expert : job.rows.first) : tensor.name;
  const uint64_t seed = std::hash<std::string>()(name) ^ *dummy_seed_;
  if (job.packed) {
    const float deviation = is_scaled(tensor.format) ? kDummyScaledDeviation : dummy_deviation(cols_of(tensor));
    const Expected<bool> made = backend_.pack_random(tensor, seed, deviation, job.packed);
    if (!made) return made.error();
    if (*made) return {};
    const std::vector<std::byte> bytes = dummy_values(tensor, 0.0f, deviation, seed);
    tensor.data = bytes.data();
    return backend_.pack(tensor, job.packed);
  }
  const float mean = tensor.name.ends_with(".bias") ? 0.0f : 1.0f;  // of a norm
  const std::vector<std::byte> bytes = dummy_values(tensor, mean, 0.1f, seed);
  std::vector<float> values(static_cast<size_t>(values_of(tensor)));
  if (Status status = dequantize_row(tensor.format, bytes.data(), values_of(tensor), values.data()); !status.ok()) {
    return status;
  }
  return upload_vector(job, std::move(values));
}

Status WeightLoader::run(const Job& job) const {
  if (job.values && job.matrix) return run_scales(job);
  if (dummy_seed_) return run_dummy(job);
  if (job.packed) return run_matrix(job);
  std::vector<float> values;
  if (Status status = read_floats(job.tensor, &values); !status.ok()) return status;
  return upload_vector(job, std::move(values));
}

Status WeightLoader::load(int threads, const std::function<void(size_t, size_t)>& progress) {
  CHECK(device_ != nullptr);
  if (!status_.ok()) return status_;
  for (auto& [memory, values] : constants_) device_->upload(memory, values.data(), sizeof(float) * values.size());

  size_t total = 0;
  for (const Job& job : jobs_) total += job.bytes;
  std::atomic<size_t> next{0}, done{0};
  std::mutex mutex;
  auto work = [&](bool reports) {
    for (size_t i; (i = next.fetch_add(1)) < jobs_.size();) {
      Status status = run(jobs_[i]);
      if (!status.ok()) {
        std::lock_guard lock(mutex);
        fail_once(std::move(status));
        next = jobs_.size();
        return;
      }
      done += jobs_[i].bytes;
      if (reports && progress) progress(done, total);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work, false);
  work(true);
  for (std::thread& helper : helpers) helper.join();
  if (progress && status_.ok()) progress(total, total);
  jobs_.clear();
  return status_;
}

}  // namespace tailrace
