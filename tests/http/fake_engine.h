// FakeEngine: a thread that keeps the engine's side of the contract (base/request.h, base/engine_status.h) for a
// scripted model: rows, waiting line, cancels, limits, one finish event each. Time passes only as the test says.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/engine_status.h"
#include "base/request_queue.h"
#include "http/scripted_text.h"

namespace tailrace::test {

class FakeEngine {
 public:
  FakeEngine(const ScriptedText& text, RequestQueue& queue, EngineStatus& status, int slots)
      : text_(text), queue_(queue), status_(status), slots_(slots) {}
  ~FakeEngine() { stop(); }

  void start();
  void stop();            // ends every request with kUnavailable, then the thread

  // The knobs; may be turned at any time.
  std::atomic<int> step_us{0};          // pause after each step
  std::atomic<bool> hung{false};        // the loop stands still: no heartbeat, no token
  std::atomic<bool> admitting{true};    // false: requests stay in the waiting line
  std::atomic<bool> fail_all{false};    // every request ends with kInternal
  std::atomic<size_t> pool_tokens{SIZE_MAX};  // longer prompts are refused with kTooLarge, as by the scheduler

  // What happened.
  std::atomic<int> num_started{0}, num_cancelled{0}, num_finished{0};
  std::atomic<int> num_tokens{0};
  int num_open() const { return open_.load(); }

 private:
  struct Row {
    std::shared_ptr<const Request> request;
    TokenId last;
    int generated = 0;
    std::shared_ptr<ConstraintRun> constraint;  // of a constrained request
  };

  void run();
  void admit();
  Expected<TokenId> constrained_token(Row& row);
  bool step(Row& row);    // false: the row has ended
  void finish(const Request& request, FinishReason reason, Status error = Status());
  void publish();

  const ScriptedText text_;
  RequestQueue& queue_;
  EngineStatus& status_;
  const int slots_;
  std::deque<std::shared_ptr<const Request>> waiting_;
  std::vector<Row> rows_;
  std::atomic<int> open_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tailrace::test
