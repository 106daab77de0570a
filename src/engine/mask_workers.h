// MaskWorkers: threads that compute the masks of constrained answers and put them where the running step finds them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/engine_status.h"
#include "batch/batch.h"
#include "scheduler/mask_source.h"

namespace tailrace {

// The device's table of masks (RowStateView::masks), as the host sees it.
struct MaskTable {
  uint32_t* words = nullptr;  // [rows][num_words]
  int32_t* len = nullptr;     // [rows][kMaskLenStride]
  int64_t num_words = 0;
};

class MaskWorkers : public MaskSource {
 public:
  // `table` and `status`, which counts, outlive it. on_ready: called by a worker when a mask lies ready or an answer has
  // failed; must not block.
  MaskWorkers(const MaskTable& table, int num_threads, EngineStatus& status, std::function<void()> on_ready);
  // After everything that open() gave.
  ~MaskWorkers() override;

  std::unique_ptr<MaskRun> open(std::shared_ptr<const Request> request) override;

 private:
  class Answer;
  class Handle;

  void enqueue(std::shared_ptr<Answer> answer);
  void work();

  const MaskTable table_;
  EngineStatus& status_;
  const std::function<void()> on_ready_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Answer>> queue_;  // guarded by mutex_
  bool stop_ = false;                          // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace tailrace
