// ThreadPool: the threads that one CPU step uses. The caller works too; workers spin briefly between regions, then sleep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace tailrace::cpu {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // threads >= 1, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  int size() const { return threads_; }

  // Runs fn(task, thread) for task in [0, num_tasks), handed out dynamically; returns when all are done. thread in
  // [0, size()). Not reentrant. Allocates nothing.
  template <typename F>
  void parallel_for(int64_t num_tasks, const F& fn) {
    run(num_tasks, [](const void* context, int64_t task, int thread) {
      (*static_cast<const F*>(context))(task, thread);
    }, &fn);
  }

 private:
  using TaskFn = void (*)(const void* context, int64_t task, int thread);
  void run(int64_t num_tasks, TaskFn fn, const void* context);

  struct State;
  std::unique_ptr<State> state_;
  int threads_;
};

}  // namespace tailrace::cpu
