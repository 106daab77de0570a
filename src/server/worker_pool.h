// WorkerPool: threads for work that is too long for the sockets' threads: JSON of large bodies, templates, tokenizing.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tailrace {

// Jobs run in the order of submission, each on one thread. Bounded by the number of connections: each has one request at
// a time.
class WorkerPool {
 public:
  // on_fault: what a job threw, memory running out for the most part; called on its thread.
  WorkerPool(int num_threads, std::function<void(const char* what)> on_fault);
  ~WorkerPool();  // stop()

  // Dropped without running once stop() was called.
  void submit(std::function<void()> job);
  // Finishes the running jobs, drops the queued ones, joins; idempotent.
  void stop();

 private:
  void run();

  const std::function<void(const char*)> on_fault_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tailrace
