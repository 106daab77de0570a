// WeightLoader: hands an architecture its weights, packed by the backend into device memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/backend.h"
#include "model/expert_tensors.h"
#include "model/load_report.h"
#include "model/matrix_source.h"
#include "model/model_config.h"
#include "weights/checkpoint.h"

namespace tailrace {

// Two phases, so that one description serves `inspect` and loading: an architecture asks for tensors by name and gets
// blocks whose memory is claimed but empty (or not even claimed when there is no device); load() then fills it.
class WeightLoader {
 public:
  // device null: plan only, no data pointer points to memory of its own and bytes() tells what would be claimed.
  // dummy_seed: if given, shapes and formats from `config` and random values of that seed instead of the checkpoint's
  // tensors: BF16, and what its quantisation plans.
  WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config, const Backend& backend, Device* device,
               std::optional<uint64_t> dummy_seed);

  // The matrix `name` [rows, cols] and its scales, with `bias_name` [rows] unless empty. Asked twice, packed once.
  Weight matrix(const std::string& name, const std::string& bias_name = "", MatrixRole role = MatrixRole::kProjection);
  // The matrix `name` of heads with 2 * head_rows rows each, as one of their first halves and one of their second.
  std::pair<Weight, Weight> halves_of_heads(const std::string& name, int64_t head_rows);
  // One matrix of every expert of a layer, with its bias and its scales; behind them that of the module `shared`, of
  // which joins_shared_expert said so, or empty.
  ExpertWeights experts(int32_t layer, ExpertPart part, const std::string& shared = "");
  // Whether the backend takes the layer's shared expert, the module `shared`, as one more, and all of it is stored as
  // the experts are.
  bool joins_shared_expert(int32_t layer, const std::string& shared);
  // The vector `name` in fp32, each value times `factor`, plus `add`.
  const float* vector(const std::string& name, float add = 0.0f, float factor = 1.0f);
  // The same with `map` of each value.
  const float* mapped_vector(const std::string& name, float (*map)(float));
  // A constant of the architecture, not of the checkpoint.
  const float* constant(const std::vector<float>& values);

  const Backend& backend() const { return backend_; }
  // Packed bytes of the matrices that --requantize applied to.
  size_t requantized_bytes() const { return requantized_bytes_; }
  // The first error of any call above.
  const Status& status() const { return status_; }
  size_t bytes() const { return bytes_; }
  // Bytes by stored format, for the start-up report: {"Q4_1", 66 MB}, ...
  const std::map<std::string, size_t>& bytes_by_format() const { return bytes_by_format_; }

  // Reads and packs everything on `threads` threads, each a tensor, an expert or a piece of a large matrix at a time:
  // host memory is bounded by their number, not by the checkpoint. progress(done, total) in bytes, from one thread.
  Status load(int threads, const std::function<void(size_t, size_t)>& progress);
  const LoadReport& load_report() const { return report_; }

 private:
  // Which rows of a stored matrix are packed: runs of `run` rows, `step` apart, from `first` on; run 0: all.
  struct RowRuns {
    int64_t run = 0, step = 0, first = 0;
    int64_t stored_row(int64_t row) const { return run == 0 ? row : row / run * step + row % run + first; }
  };

  struct Job {
    TensorView tensor;           // a vector as it is stored, or a matrix as it is packed; data null for a dummy
    void* packed = nullptr;      // a matrix's destination, or
    float* values = nullptr;     // a vector's or those of a matrix's scales; of a requantised matrix both
    float add = 0.0f, factor = 1.0f;
    float (*map)(float) = nullptr;
    size_t bytes = 0;
    std::shared_ptr<const MatrixSource> matrix;  // `packed` is its rows, or `values` are its scales
    std::shared_ptr<const ExpertSource> source;  // `packed` is of its expert `expert`, or `values` are its biases
    int64_t expert = 0;
    RowRuns rows;                // of `matrix`
    int64_t first_row = 0;       // of `matrix`, where `tensor` is a piece of it
  };

  // A thread's memory, kept from job to job.
  struct Scratch {
    std::vector<std::byte> stored[2], rows, picked, requantized;
  };

  const TensorView* find(const std::string& name);
  std::shared_ptr<const MatrixSource> find_source(const std::string& name);
  Expected<ExpertSource> find_part(int32_t layer, ExpertPart part) const;
  bool join(const std::string& shared, ExpertPart part, ExpertSource* source);
  void* claim(size_t bytes);
  float* claim_values(int64_t count);
  Weight claim_matrix(const std::shared_ptr<const MatrixSource>& source, MatrixRole role, int64_t rows,
                      const RowRuns& runs);
  void add_scales(const std::shared_ptr<const MatrixSource>& source, float* memory, const RowRuns& runs);
  // scales: where those go that are found as the rows are packed, or null.
  void add_pieces(const TensorView& whole, std::byte* packed, const std::shared_ptr<const MatrixSource>& source,
                  const RowRuns& runs, float* scales);
  void order_jobs();
  Status run(const Job& job, Scratch& scratch) const;
  Status run_dummy(const Job& job) const;
  Status run_matrix(const Job& job, Scratch& scratch) const;
  Status run_scales(const Job& job, Scratch& scratch) const;
  Status read_floats(const TensorView& tensor, Scratch& scratch, std::vector<float>* out) const;
  Status requantize(const Job& job, TensorView* rows, Scratch& scratch) const;
  static void pick_rows(const Job& job, TensorView* rows, std::vector<std::byte>* picked);
  Status upload_vector(const Job& job, std::vector<float> values) const;
  void fail_once(Status status);

  const Checkpoint& checkpoint_;
  const Backend& backend_;
  Device* device_;
  const ModelConfig config_;
  const Quantization& quantization_ = config_.quantization;
  std::optional<uint64_t> dummy_seed_;
  std::map<std::string, std::vector<int64_t>> shapes_;  // of the model's tensors but its experts'
  std::map<std::string, TensorView> dummies_;           // vectors
  std::map<std::string, Weight> matrices_;
  std::map<std::string, size_t> bytes_by_format_;
  std::vector<Job> jobs_;
  std::vector<std::pair<float*, std::vector<float>>> constants_;
  size_t bytes_ = 0, requantized_bytes_ = 0;
  LoadReport report_;
  Status status_;
};

}  // namespace tailrace
