// Scheduler: which sequences run in the next step and with how many tokens; owns sequences, slots and the KV index.
// Pure C++, deterministic, no device code: the same calls give the same plans.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/request.h"
#include "kv/kv_index.h"
#include "scheduler/cost_model.h"
#include "scheduler/mask_source.h"
#include "scheduler/step_plan.h"

namespace tailrace {

enum class MixedMode {
  kSplit,  // a step may hold decode and extend rows, each served by its own kernels (default)
  kFold,   // the same plans; the backend runs decode rows through the extend kernel (A/B)
  kOff,    // a step holds either decode rows or extend rows, alternating one chunk and one decode step (A/B)
};

struct SchedulerConfig {
  KvIndexConfig kv;
  int32_t max_rows = 64;               // --max-running-requests
  int32_t context_length = 8192;       // prompt + output
  int32_t max_step_tokens = 2048;      // decode rows + chunk; --chunked-prefill-size bounds the extend share
  int32_t chunk_size = 2048;           // ceiling of the extend tokens of a step
  int32_t max_log_patch_tokens = 16384;  // token-log entries one step may carry; >= context_length + max_step_tokens
  int32_t blocks_ahead_tokens = 64;    // blocks are handed out this far ahead, so that patches are rare
  MixedMode mixed = MixedMode::kSplit;
  double max_mixed_ratio = 4.0;        // contract 3
  CostModel cost;
  MaskSource* masks = nullptr;         // outlives the scheduler; null: constrained requests are refused
};

// What a processed step means for one request: at most one token, and its end.
struct SequenceUpdate {
  std::shared_ptr<const Request> request;
  int32_t row = -1;           // row of the step whose sampled token this is; -1: no token (cancelled, cannot grow)
  TokenId token = -1;
  bool finished = false;
  FinishReason finish = FinishReason::kStop;
  Status error;
};

struct SchedulerStats {
  int32_t running = 0, waiting = 0, inflight_steps = 0;
  std::vector<KvGroupUsage> kv;
  KvGroupUsage checkpoints;  // of recurrent states
  uint64_t preemptions = 0, prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  uint64_t mixed_steps = 0, decode_steps = 0, extend_steps = 0;
  uint64_t late_masks = 0;   // constrained rows whose mask was not there when their step came to sampling
  uint64_t late_rows = 0;    // such rows, and those of steps that were queued behind
  uint64_t floor_steps = 0;  // mixed steps whose smallest chunk alone exceeds max_mixed_ratio (every second step at most)
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerConfig config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;

  // Takes a request into the waiting line, or says at once why it can never run (kTooLarge: larger than the pool;
  // kInvalidArgument: lengths out of bounds).
  Status admit(std::shared_ptr<const Request> request);

  // Chooses the next step. Also turns cancelled requests (request->stream->cancelled()) into updates. An empty plan means
  // nothing can run now: idle, or everything waits for steps in flight.
  StepPlan plan_step();

  // Whether the last plan was empty, with nothing in flight, because all that could run waits for masks.
  bool waits_for_masks() const;

  // The step of `plan` was launched; its result arrives later by on_result. Every non-empty plan must be launched.
  void on_launched(const StepPlan& plan);

  // Results in launch order, at most the launched steps. Tokens of sequences that ended meanwhile are dropped. A constrained
  // row without a token came before its mask: the answer goes back to the waiting line, as if it were preempted.
  void on_result(const StepResult& result);

  // The updates since the last call, in order; each request gets exactly one with `finished`.
  std::vector<SequenceUpdate> take_updates();

  // Ends every request with `error` (engine failure).
  void fail_all(const Status& error);
  // Drops all cached prefixes that nobody uses (POST /flush_cache); how many blocks of all groups became free.
  int64_t flush_cache();

  bool idle() const;  // nothing waiting, running or in flight
  SchedulerStats stats() const;
  CostModel& cost_model();
  // Checks every invariant (blocks conserved, refcounts equal owners, no slot with two owners); "" or what is broken.
  std::string check_invariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace
