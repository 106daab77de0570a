// SimEngine: the real scheduler over a FakeDevice, with an oracle that knows every request's right
// answer. Each call checks all invariants; the first violation is kept.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"
#include "simulation/fake_device.h"

namespace tailrace {

class SimEngine {
 public:
  struct Answer {
    std::shared_ptr<const Request> request;
    std::vector<TokenId> tokens;
    uint64_t chain = 0;         // over prompt and tokens
    int32_t missed_steps = -1;  // steps since one with a row of it; -1: not running
    int32_t preemptions = 0;
    bool finished = false;
    FinishReason finish = FinishReason::kStop;
  };

  explicit SimEngine(const SchedulerConfig& config);

  // Admits; a refusal is returned and nothing is expected of the request.
  Status admit(std::shared_ptr<const Request> request);
  // One turn of the engine's loop: plan, launch, then complete steps until at most `max_inflight`
  // are left (at least one where nothing could be planned).
  void turn(size_t max_inflight);
  // Turns until everything has ended; a stall is a violation.
  void run_until_idle(size_t max_inflight = 1);
  void complete_oldest();
  // All blocks are free or cached, and after a flush all are free.
  void check_idle_pools();

  Scheduler& scheduler() { return scheduler_; }
  FakeMasks& masks() { return masks_; }
  const StepPlan& last_plan() const {
    return last_plan_;
  }  // empty when the last turn launched nothing
  const Answer& answer(const Request& request) const { return answers_.at(request.id); }
  const std::map<uint64_t, Answer>& answers() const { return answers_; }
  const std::string& violation() const { return violation_; }
  uint64_t num_steps() const { return num_steps_; }
  uint64_t computed_tokens() const { return computed_tokens_; }
  uint64_t num_patch_steps() const { return num_patch_steps_; }
  // Rows that saved a recurrent state, and that started from one.
  uint64_t num_checkpoints() const { return num_checkpoints_; }
  uint64_t num_checkpoint_starts() const { return num_checkpoint_starts_; }
  // Hash over all plans and updates: equal runs have equal traces.
  uint64_t trace() const { return trace_; }

 private:
  void report(const std::string& what);
  void check();
  void check_plan(const StepPlan& plan);
  void take_updates();
  void check_oldest_row_moves(const StepPlan& plan);
  void check_end(const Answer& answer, const SequenceUpdate& update);
  void trace_number(uint64_t number);

  FakeMasks masks_;
  SchedulerConfig config_;
  Scheduler scheduler_;
  FakeDevice device_;
  std::map<uint64_t, Answer> answers_;
  StepPlan last_plan_;
  std::string violation_;
  uint64_t num_steps_ = 0, computed_tokens_ = 0, num_patch_steps_ = 0, trace_ = 0;
  uint64_t num_checkpoints_ = 0, num_checkpoint_starts_ = 0;
  bool last_exceeded_ = false;
  int32_t empty_turns_ = 0;
};

}  // namespace tailrace
