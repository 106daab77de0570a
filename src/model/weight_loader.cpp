#include "model/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "base/check.h"
#include "model/model_tensors.h"
#include "weights/dequantize.h"
#include "weights/mxfp4.h"
#include "weights/nvfp4.h"

namespace tailrace {
namespace {

constexpr size_t kClaimAlign = 256;
constexpr float kDummyScaledDeviation = 32.0f;  // of values with scales apart: mid-range in E4M3, 448 is 14 of it

int64_t cols_of(const TensorView& tensor) { return tensor.shape.back(); }

// Of a dummy matrix's values: keeps activations finite through many layers.
float dummy_deviation(int64_t cols) { return 1.0f / std::sqrt(static_cast<float>(cols)); }

bool is_scaled(Format format) { return format == Format::kF8E4M3 || format == Format::kNVFP4; }

// Blocks of 4-bit codes that are all alike, each behind its scale.
void fill_codes(std::byte scale, size_t block_bytes, std::mt19937_64& random, std::vector<std::byte>* bytes) {
  for (size_t at = 0; at < bytes->size(); at += block_bytes) {
    const uint64_t codes[2] = {random(), random()};
    (*bytes)[at] = scale;
    std::memcpy(bytes->data() + at + 1, codes, block_bytes - 1);
  }
}

// Seeded values in the tensor's format: BF16 or F8_E4M3, normal; MXFP4 and NVFP4, all codes alike.
std::vector<std::byte> dummy_values(const TensorView& tensor, float mean, float deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<std::byte> bytes(tensor.bytes);
  if (tensor.format == Format::kMXFP4 || tensor.format == Format::kNVFP4) {
    const bool mx = tensor.format == Format::kMXFP4;
    fill_codes(static_cast<std::byte>(mx ? mxfp4_scale_of(deviation) : nvfp4_scale_of(deviation)),
               static_cast<size_t>(format_traits(tensor.format).block_bytes), random, &bytes);
    return bytes;
  }
  for (size_t at = 0; at < bytes.size();) {
    const float value = normal(random);
    if (tensor.format == Format::kF8E4M3) {
      bytes[at++] = static_cast<std::byte>(float_to_e4m3(value));
    } else {
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      bytes[at++] = static_cast<std::byte>(bits >> 16);
      bytes[at++] = static_cast<std::byte>(bits >> 24);
    }
  }
  return bytes;
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
    view.bytes = stored_row_bytes(view.format, cols_of(view));
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
  if (!device_) return nullptr;
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
  TensorView view = packed_view(name, source->format, source->rows, source->cols, role);
  view.data = source->values.data;
  view.rope_interleaved = source->values.rope_interleaved, view.head_dim = source->values.head_dim;
  const auto bytes = backend_.packed_bytes(view);
  if (!bytes) {
    fail_once(bytes.error());
    return {};
  }
  Weight weight{.format = source->format, .rows = source->rows, .cols = source->cols};
  void* memory = claim(*bytes);
  weight.data = memory;
  bytes_by_format_[format_traits(source->format).name] += *bytes;
  jobs_.push_back({.tensor = view, .packed = memory, .bytes = view.bytes, .matrix = source});
  if (!bias_name.empty()) weight.bias = vector(bias_name);
  if (source->scaled()) {
    float* scales = claim_values(source->rows * scales_per_row(source->layout, source->cols));
    weight.scale = scales, weight.scale_cols = scale_cols_of(*source);
    add_scales(source, scales);
  }
  matrices_.emplace(name, weight);
  return weight;
}

void WeightLoader::add_scales(const std::shared_ptr<const MatrixSource>& source, float* memory) {
  jobs_.push_back({.tensor = source->scales, .values = memory, .bytes = source->scales.bytes, .matrix = source});
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
  const int64_t scale_count = source->scaled() ? source->rows * scales_per_row(source->each[0].layout, source->cols) : 0;
  if (source->scaled()) {
    out.first.scale = scales = claim_values(source->experts * scale_count);
    out.first.scale_cols = scale_cols_of(source->each[0]);
  }
  for (int64_t e = 0; e < source->experts; ++e) {
    jobs_.push_back({.tensor = shape, .packed = memory ? memory + stride * e : nullptr, .bytes = shape.bytes,
                     .source = source, .expert = e});
    if (!source->scaled()) continue;
    const std::shared_ptr<const MatrixSource> matrix(source, &source->each[e]);
    add_scales(matrix, scales != nullptr ? scales + e * scale_count : nullptr);
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
  float* memory = claim_values(cols_of(*tensor));
  jobs_.push_back(Job{.tensor = *tensor, .values = memory, .add = add, .factor = factor, .bytes = tensor->bytes});
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
    copied.resize(rows.bytes);
    expert ? copy_expert(*job.source, job.expert, copied.data()) : copy_matrix(*job.matrix, copied.data());
    rows.data = copied.data();
  }
  Status status = expert ? check_expert(*job.source, job.expert, rows.data) : check_numbers(*job.matrix, rows.data);
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
  device_->upload(job.values, scales.data(), sizeof(float) * scales.size());
  return {};
}

Status WeightLoader::upload_vector(const Job& job, std::vector<float> values) const {
  if (job.source && !dummy_seed_) values = part_of_biases(*job.source, values);
  if (job.tensor.rope_interleaved) undo_pairwise_order(job.tensor.head_dim, &values);
  for (float& value : values) value = value * job.factor + job.add;
  device_->upload(job.values, values.data(), sizeof(float) * values.size());
  return {};
}

Status WeightLoader::run_dummy(const Job& job) const {
  TensorView tensor = job.tensor;
  const std::string name = job.source ? tensor.name + std::to_string(job.expert) : tensor.name;
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
  std::vector<float> values(static_cast<size_t>(cols_of(tensor)));
  if (Status status = dequantize_row(tensor.format, bytes.data(), cols_of(tensor), values.data()); !status.ok()) {
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
