// The scheduler's parts: who owns which state. Composed here; each source file of the folder
// implements one concern.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/block_index.h"
#include "scheduler/admission.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace tailrace {

// One planned step whose result has not arrived.
struct StepInFlight {
  struct Row {
    Sequence* sequence;
    bool samples;
    bool last_chunk;  // prefill ends with this step: its blocks enter the tree when it is launched
  };
  uint64_t step = 0;
  bool launched = false;
  std::vector<Row> rows;
};

struct Scheduler::Impl {
  explicit Impl(SchedulerConfig config);

  // scheduler.cpp: life of a sequence
  Status admit(std::shared_ptr<const Request> request);
  void take_cancelled();
  void on_launched(const StepPlan& plan);
  void on_result(const StepResult& result);
  void fail_all(const Status& error);
  void give_token(Sequence& sequence, int32_t row, TokenId token);
  void take_late(Sequence& sequence);  // its mask came after its step
  void stop_planning(Sequence& sequence, SequenceState state);  // releases nothing yet
  void finish(Sequence& sequence,
              SequenceUpdate update);  // reports the end; releases now or when no step uses it
  void start_running(Sequence& sequence, const PrefixMatch& match);
  void leave_running(Sequence& sequence, SequenceState state);
  void leave_if_unused(
      Sequence& sequence);  // releases slot and blocks of a sequence that no launched step uses
  void release_slot_and_blocks(Sequence& sequence);
  void destroy(Sequence& sequence);
  SchedulerStats current_stats() const;
  std::string check_invariants() const;

  // planner.cpp: the next step
  StepPlan plan_step();
  void build(StepPlan& plan, StepShape& shape);
  void add_decode_rows(StepPlan& plan, StepShape& shape);
  void add_extend_rows(StepPlan& plan, StepShape& shape);
  bool add_chunk(StepPlan& plan, StepShape& shape, Sequence& sequence, int32_t q_len);
  void add_row(StepPlan& plan, Sequence& sequence, int32_t q_len, bool samples);
  int32_t next_checkpoint(const Sequence& sequence) const;
  int32_t sharable_len(const Sequence& row, int32_t common_len) const;
  void admit_waiting(int32_t share);
  bool waits_for_prefix(Sequence& sequence) const;
  void count_step(const StepPlan& plan);

  // growth.cpp: blocks for growing rows, preemption
  bool grow_for_decode(Sequence& sequence);
  void top_up_decode_rows();
  bool make_room_for(Sequence& sequence);  // true: try again now; false: wait for launched steps
  bool resolve_stall();  // nothing can be planned and nothing is in flight: preempt or end somebody
  void preempt(Sequence& sequence);
  int32_t blocks_ahead_len(const Sequence& sequence) const;

  const SchedulerConfig config;
  CostModel cost;
  BlockIndex index;
  Admission admission;
  std::unordered_map<Sequence*, std::unique_ptr<Sequence>>
      sequences;                      // all alive; never iterated for decisions
  std::vector<Sequence*> running;     // by arrival
  std::vector<Sequence*> leaving;     // preempting or retiring, used by a launched step
  std::vector<int32_t> free_slots;    // lowest last
  std::deque<StepInFlight> inflight;  // oldest first, at most kMaxInflight
  std::vector<SequenceUpdate> updates;
  SchedulerStats stats;
  uint64_t next_arrival = 1;
  uint64_t next_step = 1;
  uint64_t completed_step = 0;
  bool last_was_extend = false;  // MixedMode::kOff alternates
  bool floor_step = false;       // the step being built holds a chunk that alone exceeds the ratio
  bool last_was_floor_step = false;  // such a step is followed by one without
  bool admission_closed = false;     // somebody was preempted for this step: nobody comes in
  bool masks_missing = false;        // somebody could run but for its mask, when the last step was planned
  bool top_up_due = false;           // some row needed blocks: all get theirs in the same step
  std::string broken_budget;         // first violation of a budget, for check_invariants

  static constexpr size_t kMaxInflight = 2;  // one running, one queued
  // Extend tokens that every second mixed step may take whatever they cost, so that prefill is not starved. Deep in a long
  // prompt on a CPU sixteen took twenty decode steps; four cost little more than one, for which the prefix is read as well.
  static constexpr int32_t kFloorTokens = 4;
  static constexpr int32_t kShareTokens = 16;  // two prompts share a step only while each gets as many
  static constexpr int32_t kMinSharedTokens =
      64;  // fewer are computed twice rather than waited for
  static constexpr size_t kMaxPassedOver = 64;
  static constexpr uint64_t kLookUpAgainSteps = 32;
  // A mask that is late costs its row two steps and a block's recompute. The row goes on without risk for a while, longer
  // each time.
  static constexpr int32_t kFirstBackoff = 16, kMostBackoff = 1024;
};

}  // namespace tailrace
