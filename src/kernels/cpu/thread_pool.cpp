#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace tailrace::cpu {
namespace {

// Long enough to bridge the gap between two layers' regions, short enough not to burn an idle core.
constexpr int64_t kSpinNs = 40'000;
constexpr int kPausesPerClockRead = 16;

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready() or the spin time is over; returns the last ready().
template <typename Ready>
bool spin_until(const Ready& ready) {
  const int64_t end = now_ns() + kSpinNs;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
  } while (now_ns() < end);
  return ready();
}

// A region's unclaimed tasks in the low half, its number in the high half: a claim is one compare-and-swap that cannot
// hit a later region, so a region need not wait for workers that have not woken up.
constexpr uint64_t kTasksMask = 0xffffffffu;
constexpr int kRegionShift = 32;

}  // namespace

struct ThreadPool::State {
  alignas(64) std::atomic<uint64_t> unclaimed{0};
  alignas(64) std::atomic<int64_t> unfinished{0};
  // Written before a region is published in `unclaimed`; read only by threads that hold one of its tasks.
  alignas(64) TaskFn fn = nullptr;
  const void* context = nullptr;
  int64_t num_tasks = 0;

  std::atomic<int> num_sleeping{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable work, done;
  std::vector<std::thread> workers;

  bool has_work() const { return (unclaimed.load() & kTasksMask) != 0 || stop.load(); }

  // Runs tasks of the current region until none is unclaimed.
  void run_tasks(int thread) {
    uint64_t seen = unclaimed.load(std::memory_order_acquire);
    while ((seen & kTasksMask) != 0) {
      if (!unclaimed.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                           std::memory_order_acquire)) {
        continue;
      }
      fn(context, num_tasks - static_cast<int64_t>(seen & kTasksMask), thread);
      if (unfinished.fetch_sub(1) == 1 && caller_sleeps.load()) {
        std::lock_guard<std::mutex> lock(mutex);
        done.notify_one();
      }
      seen = unclaimed.load(std::memory_order_acquire);
    }
  }

  void worker(int thread) {
    while (!stop.load()) {
      if (!spin_until([this] { return has_work(); })) {
        std::unique_lock<std::mutex> lock(mutex);
        num_sleeping.fetch_add(1);
        work.wait(lock, [this] { return has_work(); });
        num_sleeping.fetch_sub(1);
      }
      run_tasks(thread);
    }
  }

  void wait_finished() {
    const auto finished = [this] { return unfinished.load() == 0; };
    if (spin_until(finished)) return;
    std::unique_lock<std::mutex> lock(mutex);
    caller_sleeps.store(true);
    done.wait(lock, finished);
    caller_sleeps.store(false);
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()), threads_(threads) {
  CHECK(threads >= 1);
  for (int thread = 1; thread < threads; ++thread) {
    state_->workers.emplace_back([state = state_.get(), thread] { state->worker(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stop.store(true);
    state_->work.notify_all();
  }
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::run(int64_t num_tasks, TaskFn fn, const void* context) {
  CHECK(num_tasks <= std::numeric_limits<uint32_t>::max());
  if (threads_ == 1 || num_tasks <= 1) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(context, task, 0);
    return;
  }
  State& state = *state_;
  state.fn = fn;
  state.context = context;
  state.num_tasks = num_tasks;
  state.unfinished.store(num_tasks);
  const uint64_t region = (state.unclaimed.load(std::memory_order_relaxed) >> kRegionShift) + 1;
  state.unclaimed.store((region << kRegionShift) | static_cast<uint64_t>(num_tasks));
  if (state.num_sleeping.load() > 0) {
    std::lock_guard<std::mutex> lock(state.mutex);
    state.work.notify_all();
  }
  state.run_tasks(0);
  state.wait_finished();
}

}  // namespace tailrace::cpu
