// EngineHost: builds everything below the server bottom-up from a model path, and runs the engine on its own thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "model/model.h"

namespace tailrace {

struct EngineSetup {
  std::string model_path;
  std::string device_kind = "cpu";  // "cpu" or "cuda"
  int device_index = 0;             // of the GPU
  std::string gpu_name;             // of the GPU, which decide_device has asked: says which tuning table serves
  std::string backend = "cpu";      // on the CPU: "cpu" or "reference"; a GPU has one
  int threads = 0;                  // 0: all cores
  int mask_threads = 0;             // that compute grammars' masks; 0: a quarter of the cores, at most eight
  bool dummy_weights = false;       // --load-format dummy: config.json is enough
  uint64_t dummy_seed = 0;
  bool requantize_dense = false;    // --requantize dense=fp8
  Format kv_format = Format::kBF16; // of keys and values; kF8E4M3: --kv-cache-dtype fp8
  int64_t real_vocab = 0;           // ids below this exist; later rows of the head are padding, never sampled. 0: all
  EngineLimits limits;
  BackendOptions backend_options;   // max_graph_rows 0: 64, or limits.max_rows where that is less
  MixedMode mixed = MixedMode::kSplit;
  EngineLoopOptions engine;
  StagingMode staging = StagingMode::kDevice;
  CpuDeviceOptions device;
  bool measure_cost = true;         // false: `cost` as given (tests, so that plans do not depend on the machine)
  CostModel cost;
};

// The device that serves `choice`: "cpu" and "cuda" as they are, "auto" is "cuda" where the plugin and a GPU that it supports
// are there, else "cpu". `reason` says which GPU, or why there is none; kUnavailable and the reason when "cuda" cannot be had.
struct DeviceDecision {
  std::string kind, reason;
};
Expected<DeviceDecision> decide_device(const std::string& choice, int index = 0);

// What a model would be and take, without loading it: for `tailrace inspect` and the start-up report.
struct ModelReport {
  ModelConfig config;
  MemoryPlan memory;
  std::map<std::string, size_t> bytes_by_format;  // packed
  std::vector<std::string> decisions;             // the backend's, by block kind
  std::vector<std::string> unused_tensors;
  LoadReport load;                                // of EngineHost::create
};
// A model that does not fit the memory is described, too: memory.fits says so.
Expected<ModelReport> inspect_model(const EngineSetup& setup);

class EngineHost {
 public:
  // Loads the model and claims all memory. Errors name the file, the tensor or the limit. progress: bytes done of total.
  static Expected<std::unique_ptr<EngineHost>> create(const EngineSetup& setup, RequestQueue& queue,
                                                      EngineStatus& status,
                                                      const std::function<void(size_t, size_t)>& progress);
  ~EngineHost();  // stop(true) and join()

  void start();  // the engine thread; status turns kReady
  void stop(bool abort) { engine_->stop(abort); }
  void join();
  Expected<FlushedCache> flush_cache(std::chrono::milliseconds patience) { return engine_->flush_cache(patience); }

  const ModelReport& report() const { return report_; }
  const Device& device() const { return *device_; }
  const Model& model() const { return model_; }
  double read_gbs() { return device_->read_gbs(); }  // see Device; not while requests run
  ExpertCounts expert_counts(int32_t rows) const { return backend_->expert_counts(rows); }  // likewise
  const CostModel& cost() const { return cost_; }
  ModelRunner& runner() { return *runner_; }  // tests; not while the engine runs
  // Of the engine, from start() to join().
  std::thread::native_handle_type engine_thread() { return thread_.native_handle(); }

 private:
  EngineHost() = default;

  ModelReport report_;
  CostModel cost_;
  std::unique_ptr<Device> device_;      // first in, last out: everything below lives in its memory
  std::unique_ptr<Backend> backend_;
  Model model_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<MaskWorkers> masks_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Engine> engine_;
  std::thread thread_;
};

}  // namespace tailrace
