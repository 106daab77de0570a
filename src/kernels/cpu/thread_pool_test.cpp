#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace tailrace::cpu {
namespace {

TEST(ThreadPool, runs_every_task_once) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int64_t num_tasks : {0, 1, 2, 3, 64, 1000}) {
      std::vector<int> runs(num_tasks, 0);  // plain: the pool must order the tasks' writes before its return
      std::atomic<bool> bad_thread{false};
      pool.parallel_for(num_tasks, [&](int64_t task, int thread) {
        ++runs[task];
        if (thread < 0 || thread >= threads) bad_thread = true;
      });
      for (int count : runs) EXPECT_EQ(count, 1);
      EXPECT_FALSE(bad_thread);
    }
  }
}

TEST(ThreadPool, many_short_regions_see_each_others_writes) {
  ThreadPool pool(3);
  std::vector<int64_t> now(7, 0), next(7, 0);
  for (int region = 0; region < 5000; ++region) {
    pool.parallel_for(7, [&](int64_t task, int) { next[task] = now[(task + 3) % 7] + 1; });
    now.swap(next);
  }
  for (int64_t value : now) EXPECT_EQ(value, 5000);
}

TEST(ThreadPool, no_two_tasks_share_a_thread_at_once) {
  ThreadPool pool(4);
  std::vector<int> inside(4, 0);
  std::atomic<int> overlaps{0};
  for (int region = 0; region < 200; ++region) {
    pool.parallel_for(16, [&](int64_t, int thread) {
      if (inside[thread]++ != 0) ++overlaps;
      --inside[thread];
    });
  }
  EXPECT_EQ(overlaps, 0);
}

// Workers and caller go to sleep when the others are slow, and must be woken.
TEST(ThreadPool, sleepers_wake_up) {
  ThreadPool pool(3);
  std::atomic<int> runs{0};
  for (int region = 0; region < 20; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    pool.parallel_for(3, [&](int64_t task, int) {
      if (task == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++runs;
    });
    EXPECT_EQ(runs, 3 * (region + 1));
  }
}

TEST(ThreadPool, destroyed_while_workers_spin_or_sleep) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(3);
    if (round % 2 != 0) pool.parallel_for(8, [](int64_t, int) {});
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace
}  // namespace tailrace::cpu
