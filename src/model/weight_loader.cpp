#include "model/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "base/check.h"
#include "model/model_tensors.h"
#include "weights/dequantize.h"

namespace tailrace {
namespace {

constexpr size_t kClaimAlign = 256;

int64_t rows_of(const TensorView& tensor) { return tensor.shape.size() == 2 ? tensor.shape[0] : 1; }
int64_t cols_of(const TensorView& tensor) { return tensor.shape.back(); }

// Seeded normal values as BF16, of a scale that keeps activations finite through many layers.
std::vector<uint16_t> dummy_values(const TensorView& tensor, uint64_t seed) {
  const bool is_norm = tensor.shape.size() == 1;
  const float scale = is_norm ? 0.1f : 1.0f / std::sqrt(static_cast<float>(cols_of(tensor)));
  std::mt19937_64 random(std::hash<std::string>()(tensor.name) ^ seed);
  std::normal_distribution<float> normal(is_norm ? 1.0f : 0.0f, scale);
  std::vector<uint16_t> values(static_cast<size_t>(rows_of(tensor) * cols_of(tensor)));
  for (uint16_t& v : values) {
    const float value = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    v = static_cast<uint16_t>(bits >> 16);
  }
  return values;
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

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config, const Backend& backend,
                           Device* device, std::optional<uint64_t> dummy_seed)
    : checkpoint_(checkpoint), backend_(backend), device_(device), dummy_seed_(dummy_seed) {
  if (!dummy_seed_) return;
  for (const ModelTensor& tensor : model_tensors(config)) {
    TensorView view;
    view.name = tensor.name;
    view.format = Format::kBF16;
    view.shape = tensor.shape;
    size_t elems = 1;
    for (int64_t dim : tensor.shape) elems *= static_cast<size_t>(dim);
    view.bytes = elems * 2;
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

Weight WeightLoader::matrix(const std::string& name, const std::string& bias_name) {
  if (auto it = matrices_.find(name); it != matrices_.end()) return it->second;
  const TensorView* tensor = find(name);
  if (!tensor) return {};
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
  matrices_.emplace(name, weight);
  return weight;
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

Status WeightLoader::run(const Job& job) const {
  TensorView tensor = job.tensor;
  std::vector<uint16_t> dummy;
  if (dummy_seed_) {
    dummy = dummy_values(tensor, *dummy_seed_);
    tensor.data = reinterpret_cast<const std::byte*>(dummy.data());
  } else if (Status status = checkpoint_.prepare(job.tensor); !status.ok()) {
    return status;
  }
  if (job.packed) {
    if (Status status = backend_.pack(tensor, job.packed); !status.ok()) return status;
  } else {
    std::vector<float> values(static_cast<size_t>(cols_of(tensor)));
    if (Status status = dequantize_row(tensor.format, tensor.data, cols_of(tensor), values.data()); !status.ok()) {
      return status;
    }
    if (tensor.rope_interleaved) undo_pairwise_order(tensor.head_dim, &values);
    for (float& value : values) value += job.add;
    device_->upload(job.values, values.data(), sizeof(float) * values.size());
  }
  if (!dummy_seed_) checkpoint_.release(job.tensor);
  return Status();
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
