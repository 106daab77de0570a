// Engine: the loop that joins queue, scheduler and device. One thread; the host prepares step n+1 while step n runs.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/engine_status.h"
#include "base/request_queue.h"
#include "base/step_log.h"
#include "engine/model_runner.h"
#include "engine/step_trace.h"
#include "scheduler/scheduler.h"

namespace tailrace {

struct EngineLoopOptions {
  bool overlap = true;             // --overlap off: each step is processed before the next is planned (A/B)
  bool fold = false;               // --mixed fold: each mixed step counts as served by another path
  double max_mixed_ratio = 4.0;    // contract 3, for the counter of steps that lasted longer
  int32_t bound_floor_us = 1000;   // steps shorter than this are not judged: timer noise
  StepLog* log = nullptr;          // outlives the engine; null: none is kept
};

class Engine {
 public:
  // All four outlive the engine. status->state turns kReady with admit() and kDead when run() ends.
  Engine(EngineLoopOptions options, ModelRunner& runner, Scheduler& scheduler, RequestQueue& queue,
         EngineStatus& status);

  // Requests are accepted from here on, before run(): they wait in the queue.
  void admit();
  // The loop, on the calling thread, until stop() and everything accepted has ended. A failure ends every request with an
  // error event and returns.
  void run();
  // Any thread. abort: running requests end with an error now; else they are finished first.
  void stop(bool abort);
  // Any thread but the loop's: drops the cached prefixes of everything that has ended, and returns when that is done.
  // kResourceExhausted: the loop did not come to it within `patience`, but will; kUnavailable: it has ended.
  Expected<FlushedCache> flush_cache(std::chrono::milliseconds patience);

 private:
  // A launched step and what its results are worth.
  struct Inflight {
    LaunchedStep step;
    StepShape shape;
    double predicted_us = 0, decode_only_us = 0;
    bool had_work = true;            // for StepTimes
    bool waited_for_result = false;
    std::vector<uint64_t> request_ids;  // of its rows
    StepRecord record;
  };

  void loop();
  void end_all(const Status& error);
  void receive();
  std::optional<Inflight> launch_next();
  void process(Inflight& inflight);
  void deliver(const SampledRow* sampled);
  void reject(const Request& request, const Status& status);
  void measure(Inflight& inflight);
  void count_idle(const Inflight& inflight, const IdleGap& gap);
  void publish();
  void serve_flushes();
  void fail_flushes();

  // Sequences of steps launched before it hold blocks until those steps have ended.
  struct Flush {
    std::promise<Expected<FlushedCache>> done;
    std::optional<uint64_t> after_launch;  // the last one when the loop saw it
  };

  EngineLoopOptions options_;
  ModelRunner& runner_;
  Scheduler& scheduler_;
  RequestQueue& queue_;
  EngineStatus& status_;
  StepTrace trace_;
  std::vector<TokenId> ids_;
  uint64_t host_blocks_seen_ = 0;
  int64_t idle_ns_[kNumIdleCauses] = {};
  std::unordered_map<uint64_t, std::shared_ptr<const Request>> open_;  // admitted, not finished
  bool plan_waited_ = false;   // a plan was empty because results were missing, since the last launch
  bool was_idle_ = true;       // nothing to do at some time since the last launch
  bool inflight_ = false;
  bool refuse_ = false;        // aborted or at its end: requests still in the queue are refused
  uint64_t num_launched_ = 0, num_processed_ = 0;
  uint64_t num_idle_rows_ = 0;  // decode rows that turned idle before their step
  std::atomic<bool> stop_{false}, abort_{false};
  std::mutex flush_mutex_;
  std::vector<Flush> flushes_;  // guarded by flush_mutex_
  bool ended_ = false;          // guarded by flush_mutex_: nobody serves flushes any more
};

}  // namespace tailrace
