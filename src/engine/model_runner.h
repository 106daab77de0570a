// ModelRunner: owns the device side of the engine (pools, tables, streams) and launches one StepPlan at a time.
#pragma once

#include <memory>
#include <vector>

#include "batch/staging.h"
#include "engine/mask_workers.h"
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
  std::shared_ptr<Event> begun, done;   // the forward's first and last moment on the engine stream
  const SampledRow* sampled = nullptr;  // [num_rows] pinned; valid when done
};

class ModelRunner {
 public:
  // Claims every pool, table and scratch of `plan` and prepares the backend. kResourceExhausted names what did not fit.
  static Expected<std::unique_ptr<ModelRunner>> create(Device& device, Backend& backend, const Model& model,
                                                       const MemoryPlan& plan,
                                                       StagingMode staging = StagingMode::kDevice);
  ~ModelRunner();  // waits for what is queued

  // Queues the step: slab copy on the copy stream; patches, forward and sampling on the engine stream. Never blocks.
  LaunchedStep launch(const StepPlan& plan);

  const MemoryPlan& plan() const { return plan_; }
  MaskTable mask_table() const { return masks_; }  // of plan().step.max_rows slots
  uint64_t launches() const { return launches_; }
  uint64_t slabs() const { return slabs_; }  // launches that needed a copy to the device
  Device& device() { return device_; }
  Backend& backend() { return backend_; }

 private:
  ModelRunner(Device& device, Backend& backend, const MemoryPlan& plan)
      : device_(device), backend_(backend), plan_(plan) {}
  Status claim(const Model& model, StagingMode staging);
  Status claim_row_state();
  Status claim_states(const StateSpec& spec);
  // Whether `plan` is the last launch over again, every row one token further: then the device needs no slab.
  bool advances(const StepPlan& plan) const;

  Device& device_;
  Backend& backend_;
  MemoryPlan plan_;
  std::unique_ptr<Stream> engine_stream_, copy_stream_;
  std::unique_ptr<Staging> staging_;
  StepBinding binding_{};
  MaskTable masks_;
  uint64_t launches_ = 0;
  uint64_t slabs_ = 0;
  std::vector<PlanRow> last_rows_;  // of the last launch
  bool last_was_decode_ = false;
};

}  // namespace tailrace
