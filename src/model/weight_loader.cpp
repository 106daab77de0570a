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

namespace tailrace {
namespace {

constexpr size_t kClaimAlign = 256;
constexpr float kDummyFp8Deviation = 32.0f;  // of stored values: in the middle of E4M3's range, 448 is 14 of it

int64_t rows_of(const TensorView& tensor) { return tensor.shape.size() == 2 ? tensor.shape[0] : 1; }
int64_t cols_of(const TensorView& tensor) { return tensor.shape.back(); }

// Of a dummy matrix's values: keeps activations finite through many layers.
float dummy_deviation(int64_t cols) { return 1.0f / std::sqrt(static_cast<float>(cols)); }

// Seeded values in the tensor's format: BF16 or F8_E4M3, normal; MXFP4, all codes alike.
std::vector<std::byte> dummy_values(const TensorView& tensor, float mean, float deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<std::byte> bytes(tensor.bytes);
  if (tensor.format == Format::kMXFP4) {
    for (size_t at = 0; at < bytes.size(); at += 17) {
      const uint64_t codes[2] = {random(), random()};
      bytes[at] = static_cast<std::byte>(mxfp4_scale_of(deviation));
      std::memcpy(bytes.data() + at + 1, codes, sizeof codes);
    }
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

Status bad_value(const TensorView& tensor, const char* what, size_t at) {
  return {StatusCode::kDataLoss,
          "tensor " + printable(tensor.name) + ": " + what + " " + std::to_string(at) + " is not finite"};
}

// 8-bit floats have no infinity; a NaN is a broken file, and would spread to every token.
Status check_fp8(const TensorView& tensor) {
  constexpr size_t kChunk = 4096;
  const auto is_nan = [](std::byte b) { return (b & std::byte{0x7f}) == std::byte{0x7f}; };
  for (size_t begin = 0; begin < tensor.bytes; begin += kChunk) {
    const size_t end = std::min(tensor.bytes, begin + kChunk);
    bool any = false;
    for (size_t i = begin; i < end; ++i) any |= is_nan(tensor.data[i]);
    if (!any) continue;
    return bad_value(tensor, "value", std::find_if(tensor.data + begin, tensor.data + end, is_nan) - tensor.data);
  }
  return {};
}

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config, const Backend& backend,
                           Device* device, std::optional<uint64_t> dummy_seed)
    : checkpoint_(checkpoint),
      backend_(backend),
      device_(device),
      config_(config),
      dummy_seed_(dummy_seed) {
  if (!dummy_seed_) return;
  for (const ModelTensor& tensor : model_tensors(config)) {
    TensorView view;
    view.name = tensor.name;
    view.format = must_be_fp8(quantization_, tensor.name) ? Format::kF8E4M3 : Format::kBF16;
    view.shape = tensor.shape;
    view.bytes = stored_row_bytes(view.format, cols_of(view)) * static_cast<size_t>(rows_of(view));
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

Weight WeightLoader::matrix(const std::string& name, const std::string& bias_name, MatrixRole role) {
  if (auto it = matrices_.find(name); it != matrices_.end()) return it->second;
  const TensorView* found = find(name);
  if (!found) return {};
  TensorView view = *found;
  view.role = role;
  const TensorView* tensor = &view;
  CHECK(tensor->shape.size() == 2);
  auto bytes = backend_.packed_bytes(*tensor);
  if (!bytes) {
    fail_once(bytes.error());
    return {};
  }
  Weight weight{.format = tensor->format, .rows = tensor->shape[0], .cols = tensor->shape[1]};
  void* memory = claim(*bytes);
  weight.data = memory;
  bytes_by_format_[format_traits(tensor->format).name] += *bytes;
  jobs_.push_back(Job{.tensor = *tensor, .packed = memory, .bytes = tensor->bytes});
  if (!bias_name.empty()) weight.bias = vector(bias_name);
  if (tensor->format == Format::kF8E4M3) claim_scales(name, &weight);
  matrices_.emplace(name, weight);
  return weight;
}

ExpertWeights WeightLoader::experts(int32_t layer, ExpertPart part) {
  Expected<ExpertSource> found = dummy_seed_ ? dummy_experts(config_, layer, part)
                                             : find_experts(checkpoint_, config_, layer, part);
  if (!found) {
    fail_once(found.error());
    return {};
  }
  const auto source = std::make_shared<const ExpertSource>(std::move(*found));
  TensorView shape = expert_slice(source->values, source->experts, 0);
  shape.format = source->format;
  shape.role = MatrixRole::kExpert;
  shape.shape = {source->rows, source->cols};
  shape.bytes = stored_row_bytes(source->format, source->cols) * static_cast<size_t>(source->rows);
  const auto bytes = backend_.packed_bytes(shape);
  if (!bytes) {
    fail_once(bytes.error());
    return {};
  }
  const size_t stride = (*bytes + 63) / 64 * 64;
  auto* memory = static_cast<std::byte*>(claim(stride * static_cast<size_t>(source->experts)));
  auto* bias = static_cast<float*>(claim(sizeof(float) * static_cast<size_t>(source->experts * source->rows)));
  const std::string kind = std::string(format_traits(source->format).name) + " experts";
  bytes_by_format_[kind] += stride * static_cast<size_t>(source->experts);
  bytes_by_format_["F32"] += sizeof(float) * static_cast<size_t>(source->experts * source->rows);
  for (int64_t expert = 0; expert < source->experts; ++expert) {
    jobs_.push_back({.tensor = shape, .packed = memory ? memory + stride * expert : nullptr, .bytes = shape.bytes,
                     .source = source, .expert = expert});
  }
  jobs_.push_back({.tensor = source->bias, .values = bias, .bytes = source->bias.bytes, .source = source});
  return {.first = {.format = source->format, .rows = source->rows, .cols = source->cols, .data = memory, .bias = bias},
          .count = source->experts,
          .stride = static_cast<int64_t>(stride)};
}

void WeightLoader::claim_scales(const std::string& name, Weight* weight) {
  const int64_t per_row = scales_per_row(quantization_, weight->cols);
  const size_t bytes = sizeof(float) * weight->rows * per_row;
  TensorView tensor;
  tensor.name = name + quantization_.suffix;
  if (!dummy_seed_) {
    const TensorView* stored = find(tensor.name);
    if (!stored) return;
    const std::string fault = scale_fault(quantization_, *stored, weight->rows, weight->cols);
    if (!fault.empty()) return fail_once({StatusCode::kDataLoss, "tensor " + printable(tensor.name) + ": " + fault});
    tensor = *stored;
  }
  auto* memory = static_cast<float*>(claim(bytes));
  bytes_by_format_["F32"] += bytes;
  weight->scale = memory;
  weight->scale_cols = quantization_.layout == ScaleLayout::kBlock ? kScaleBlock : weight->cols;
  jobs_.push_back({.tensor = tensor, .values = memory, .bytes = tensor.bytes,
                   .scaled_rows = weight->rows, .scaled_cols = weight->cols});
}

const float* WeightLoader::vector(const std::string& name, float add) {
  const TensorView* tensor = find(name);
  if (!tensor) return nullptr;
  auto* memory = static_cast<float*>(claim(sizeof(float) * cols_of(*tensor)));
  bytes_by_format_["F32"] += sizeof(float) * cols_of(*tensor);
  jobs_.push_back(Job{.tensor = *tensor, .values = memory, .add = add, .bytes = tensor->bytes});
  return memory;
}

const float* WeightLoader::constant(const std::vector<float>& values) {
  auto* memory = static_cast<float*>(claim(sizeof(float) * values.size()));
  constants_.emplace_back(memory, values);
  return memory;
}

Status WeightLoader::run_matrix(const TensorView& tensor, void* packed) const {
  if (tensor.format == Format::kF8E4M3) {
    if (Status status = check_fp8(tensor); !status.ok()) return status;
  }
  return backend_.pack(tensor, packed);
}

Status WeightLoader::run_expert(const Job& job) const {
  const ExpertSource& source = *job.source;
  const TensorView values = expert_slice(source.values, source.experts, job.expert);
  const TensorView scales = expert_slice(source.scales, source.experts, job.expert);
  for (const TensorView* stored : {&values, &scales}) {
    if (stored->bytes == 0) continue;
    if (Status status = checkpoint_.prepare(*stored); !status.ok()) return status;
  }
  TensorView rows = job.tensor;
  std::vector<std::byte> copied;
  rows.data = values.data;
  if (!source.in_place()) {
    copied.resize(rows.bytes);
    copy_expert(source, job.expert, copied.data());
    rows.data = copied.data();
  }
  if (source.format == Format::kMXFP4) {
    const TensorView& named = scales.bytes > 0 ? scales : rows;
    if (Status status = check_mxfp4(named, rows.data, rows.bytes); !status.ok()) return status;
  }
  if (Status status = backend_.pack(rows, job.packed); !status.ok()) return status;
  checkpoint_.release(values);
  if (scales.bytes > 0) checkpoint_.release(scales);
  return {};
}

Status WeightLoader::run_values(const Job& job, std::vector<float> values) const {
  if (job.scaled_rows > 0) {
    const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    if (bad != values.end()) return bad_value(job.tensor, "scale", bad - values.begin());
    values = expand_scales(quantization_, values, job.scaled_rows, job.scaled_cols);
  }
  if (job.source && !dummy_seed_) values = part_of_biases(*job.source, values);
  if (job.tensor.rope_interleaved) undo_pairwise_order(job.tensor.head_dim, &values);
  for (float& value : values) value += job.add;
  device_->upload(job.values, values.data(), sizeof(float) * values.size());
  return {};
}

Status WeightLoader::run_dummy(const Job& job) const {
  if (job.scaled_rows > 0) {
    const float scale = dummy_deviation(job.scaled_cols) / kDummyFp8Deviation;
    const std::vector<float> scales(job.scaled_rows * scales_per_row(quantization_, job.scaled_cols), scale);
    device_->upload(job.values, scales.data(), sizeof(float) * scales.size());
    return {};
  }
  TensorView tensor = job.tensor;
  const std::string name = job.source ? tensor.name + std::to_string(job.expert) : tensor.name;
  const uint64_t seed = std::hash<std::string>()(name) ^ *dummy_seed_;
  if (job.packed) {
    const float deviation =
        tensor.format == Format::kF8E4M3 ? kDummyFp8Deviation : dummy_deviation(cols_of(tensor));
    const Expected<bool> made = backend_.pack_random(tensor, seed, deviation, job.packed);
    if (!made) return made.error();
    if (*made) return {};
    const std::vector<std::byte> bytes = dummy_values(tensor, 0.0f, deviation, seed);
    tensor.data = bytes.data();
    return run_matrix(tensor, job.packed);
  }
  const float mean = tensor.name.ends_with(".bias") ? 0.0f : 1.0f;  // of a norm
  const std::vector<std::byte> bytes = dummy_values(tensor, mean, 0.1f, seed);
  std::vector<float> values(static_cast<size_t>(cols_of(tensor)));
  if (Status status = dequantize_row(tensor.format, bytes.data(), cols_of(tensor), values.data()); !status.ok()) {
    return status;
  }
  return run_values(job, std::move(values));
}

Status WeightLoader::run(const Job& job) const {
  if (dummy_seed_) return run_dummy(job);
  if (job.source && job.packed) return run_expert(job);
  const TensorView& tensor = job.tensor;
  if (Status status = checkpoint_.prepare(tensor); !status.ok()) return status;
  Status status;
  if (job.packed) {
    status = run_matrix(tensor, job.packed);
  } else {
    const auto count = static_cast<int64_t>(tensor.bytes / format_traits(tensor.format).block_bytes) *
                       format_traits(tensor.format).block_elems;
    std::vector<float> values(static_cast<size_t>(count));
    status = dequantize_row(tensor.format, tensor.data, count, values.data());
    if (status.ok()) status = run_values(job, std::move(values));
  }
  if (status.ok()) checkpoint_.release(tensor);
  return status;
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
