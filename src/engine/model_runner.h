// ModelRunner: owns the device side of the engine (pools, tables, streams) and launches one StepPlan at a time.
#pragma once

#include <memory>
#include <vector>

#include "batch/staging.h"
#include "engine/memory_plan.h"
#include "kernels/backend.h"
#include "model/model.h"
#include "scheduler/step_plan.h"

namespace tailrace {

// A step that was queued on the device.
struct LaunchedStep {
  uint64_t step = 0;
  int32_t num_rows = 0;
  int64_t launched_ns = 0;              // host time of the launch
  std::shared_ptr<Event> copied;        // its slab reached the device
  std::shared_ptr<Event> begun, done;   // the forward's first and last moment on the engine stream
  const SampledRow* sampled = nullptr;  // [num_rows] pinned; valid when done
};

class ModelRunner {
 public:
  // Claims every pool, table and scratch of `plan` and prepares the backend. kResourceExhausted names what did not fit.
  static Expected<std::unique_ptr<ModelRunner>> create(Device& device, Backend& backend, const Model& model,
                                                       const MemoryPlan& plan);
  ~ModelRunner();  // waits for what is queued

  // Queues the step: slab copy on the copy stream; patches, forward and sampling on the engine stream. Never blocks.
  LaunchedStep launch(const StepPlan& plan);

  const MemoryPlan& plan() const { return plan_; }
  Device& device() { return device_; }
  Backend& backend() { return backend_; }

 private:
  ModelRunner(Device& device, Backend& backend, const MemoryPlan& plan)
      : device_(device), backend_(backend), plan_(plan) {}
  Status claim(const Model& model);
  Status claim_row_state();

  Device& device_;
  Backend& backend_;
  MemoryPlan plan_;
  std::unique_ptr<Stream> engine_stream_, copy_stream_;
  std::unique_ptr<Staging> staging_;
  PatchTargets targets_{};
  Batch batch_{};  // everything but the step's own fields
};

}  // namespace tailrace
