// The second phase of WeightLoader: reading, packing and uploading what the first has claimed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/process_memory.h"
#include "model/dummy_values.h"
#include "model/weight_loader.h"
#include "weights/dequantize.h"

namespace tailrace {
namespace {

int64_t values_of(const TensorView& tensor) {
  const FormatTraits traits = format_traits(tensor.format);
  return static_cast<int64_t>(tensor.bytes / traits.block_bytes) * traits.block_elems;
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

// Its memory, grown to `bytes` if it was smaller: shrinking and growing again would write zeros each time.
std::byte* at_least(size_t bytes, std::vector<std::byte>* memory) {
  if (memory->size() < bytes) memory->resize(bytes);
  return memory->data();
}

}  // namespace

Status WeightLoader::run_matrix(const Job& job, Scratch& scratch) const {
  const bool expert = job.source != nullptr, in_place = expert ? job.source->in_place() : job.matrix->in_place();
  TensorView rows = job.tensor;
  std::vector<TensorView> stored = expert ? job.source->stored(job.expert) : job.matrix->stored();
  if (!expert && in_place && job.rows.run == 0) stored = {rows};  // all of them or a piece
  for (size_t i = 0; i < stored.size(); ++i) {
    std::byte* read = at_least(stored[i].bytes, &scratch.stored[i]);
    if (Status status = checkpoint_.read(stored[i], read); !status.ok()) return status;
    stored[i].data = read;
  }
  rows.data = stored[0].data;
  size_t bytes = stored[0].bytes;
  if (!in_place) {
    bytes = expert ? rows.bytes : job.matrix->packed_rows_bytes();
    std::byte* copied = at_least(bytes, &scratch.rows);
    expert ? copy_expert(*job.source, stored, copied) : copy_matrix(*job.matrix, stored, copied);
    rows.data = copied;
  }
  Status status = expert ? check_expert(*job.source, job.expert, rows.data)
                         : job.values != nullptr ? Status()  // requantize() looks at each number
                         : check_numbers(*job.matrix, rows.data, bytes, job.first_row);
  if (!status.ok()) return status;
  if (job.rows.run > 0) pick_rows(job, &rows, &scratch.picked);
  if (job.values != nullptr) status = requantize(job, &rows, scratch);
  return status.ok() ? backend_.pack(rows, job.packed) : status;
}

Status WeightLoader::requantize(const Job& job, TensorView* rows, Scratch& scratch) const {
  const size_t count = static_cast<size_t>(rows->shape[0]);
  rows->bytes = stored_row_bytes(job.matrix->format, job.matrix->cols) * count;
  std::byte* packed = at_least(rows->bytes, &scratch.requantized);
  std::vector<float> scales(count);
  Status status = requantize_rows(*job.matrix, rows->data, rows->shape[0], packed, scales.data());
  if (!status.ok()) return status;
  rows->format = job.matrix->format;
  rows->data = packed;
  device_->upload(job.values, scales.data(), sizeof(float) * count);
  return {};
}

void WeightLoader::pick_rows(const Job& job, TensorView* rows, std::vector<std::byte>* picked) {
  const size_t row_bytes = stored_row_bytes(rows->format, rows->shape.back());
  picked->clear();
  for (int64_t row = 0; row < rows->shape[0]; ++row) {
    const std::byte* from = rows->data + row_bytes * static_cast<size_t>(job.rows.stored_row(row));
    picked->insert(picked->end(), from, from + row_bytes);
  }
  rows->data = picked->data();
}

Status WeightLoader::read_floats(const TensorView& tensor, Scratch& scratch, std::vector<float>* out) const {
  std::byte* read = at_least(tensor.bytes, &scratch.stored[0]);
  if (Status status = checkpoint_.read(tensor, read); !status.ok()) return status;
  const int64_t count = values_of(tensor);
  out->resize(static_cast<size_t>(count));
  return dequantize_row(tensor.format, read, count, out->data());
}

Status WeightLoader::run_scales(const Job& job, Scratch& scratch) const {
  const MatrixSource& matrix = *job.matrix;
  std::vector<float> scales = {dummy_deviation(matrix.cols) / kDummyScaledDeviation};
  if (dummy_seed_) {
    scales.assign(static_cast<size_t>(matrix.rows * scales_per_row(matrix.layout, matrix.cols)), scales[0]);
  } else {
    if (Status status = read_floats(job.tensor, scratch, &scales); !status.ok()) return status;
    if (Status status = check_scales(matrix, scales); !status.ok()) return status;
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
    const float deviation = is_scaled(tensor.format) ? kDummyScaledDeviation : dummy_deviation(tensor.shape.back());
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

Status WeightLoader::run(const Job& job, Scratch& scratch) const {
  if (job.values && job.matrix && !job.packed) return run_scales(job, scratch);
  if (dummy_seed_) return run_dummy(job);
  if (job.packed) return run_matrix(job, scratch);
  std::vector<float> values;
  if (Status status = read_floats(job.tensor, scratch, &values); !status.ok()) return status;
  return upload_vector(job, std::move(values));
}

// As their tensors follow each other in the files, which a disk reads fastest.
void WeightLoader::order_jobs() {
  std::vector<std::pair<const std::byte*, size_t>> order;
  for (const Job& job : jobs_) {
    const bool expert = job.source && job.packed;
    order.emplace_back(expert ? job.source->stored(job.expert)[0].data : job.tensor.data, order.size());
  }
  std::sort(order.begin(), order.end());
  std::vector<Job> jobs;
  for (const auto& [at, index] : order) jobs.push_back(std::move(jobs_[index]));
  jobs_ = std::move(jobs);
}

Status WeightLoader::load(int threads, const std::function<void(size_t, size_t)>& progress) {
  CHECK(device_ != nullptr);
  if (!status_.ok()) return status_;
  for (auto& [memory, values] : constants_) device_->upload(memory, values.data(), sizeof(float) * values.size());

  order_jobs();
  size_t total = 0;
  for (const Job& job : jobs_) total += job.bytes;
  std::atomic<size_t> next{0}, done{0};
  std::mutex mutex;
  const auto begun = std::chrono::steady_clock::now();
  auto work = [&](bool reports) {
    Scratch scratch;
    for (size_t i; (i = next.fetch_add(1)) < jobs_.size();) {
      Status status = run(jobs_[i], scratch);
      if (!status.ok()) {
        std::lock_guard lock(mutex);
        fail_once(std::move(status));
        next = jobs_.size();
        return;
      }
      done += jobs_[i].bytes;
      if (!reports) continue;
      report_.peak_resident = std::max(report_.peak_resident, static_cast<size_t>(read_process_memory().resident_bytes));
      if (progress) progress(done, total);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work, false);
  work(true);
  for (std::thread& helper : helpers) helper.join();
  report_.bytes = dummy_seed_ ? 0 : total;
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  if (progress && status_.ok()) progress(total, total);
  jobs_.clear();
  return status_;
}

}  // namespace tailrace
