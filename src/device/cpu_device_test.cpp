#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "device/device.h"

namespace tailrace {
namespace {

CpuDeviceOptions delayed(uint64_t seed) {
  return {.thread_per_stream = true, .delay_seed = seed, .max_delay_us = 200, .memory_bytes = 1 << 24};
}

TEST(CpuDevice, stream_runs_in_order_and_copies) {
  auto device = create_cpu_device({.memory_bytes = 1 << 24});
  auto stream = device->create_stream("engine");
  auto* src = static_cast<int*>(device->alloc_pinned(64));
  auto* dst = static_cast<int*>(device->alloc_device(64));
  stream->run([=] { src[0] = 7; });
  stream->copy(dst, src, 64);
  stream->run([=] { src[0] = 9; });
  stream->record()->wait("test");
  EXPECT_EQ(dst[0], 7);
  EXPECT_EQ(src[0], 9);
}

TEST(CpuDevice, a_blocking_copy_takes_pageable_memory_and_is_a_host_block) {
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}}) {
    auto device = create_cpu_device(delayed(seed));
    auto stream = device->create_stream("engine");
    auto* dst = static_cast<int*>(device->alloc_device(64));
    int src = 5, seen = 0;
    stream->copy_blocking(dst, &src, sizeof src, "staging");
    EXPECT_EQ(device->counters().host_blocks, 0u) << "before ready everything may wait";
    device->set_ready();
    src = 6;
    stream->run([&] { seen = *dst; });
    stream->copy_blocking(dst, &src, sizeof src, "staging");
    EXPECT_EQ(seen, 5) << "in stream order, and the host waited";
    EXPECT_EQ(*dst, 6);
    EXPECT_EQ(device->counters().host_blocks, 1u);
  }
}

TEST(CpuDevice, wait_for_orders_two_streams_under_delays) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    auto device = create_cpu_device(delayed(seed));
    auto a = device->create_stream("a"), b = device->create_stream("b");
    std::atomic<int> value{0};
    int seen = -1;
    a->run([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      value = 1;
    });
    b->wait_for(a->record());
    b->run([&] { seen = value; });
    b->record()->wait("test");
    EXPECT_EQ(seen, 1) << "seed " << seed;
  }
}

TEST(CpuDevice, one_worker_passes_over_a_stream_that_waits) {
  auto device = create_cpu_device({.memory_bytes = 1 << 24});
  auto a = device->create_stream("a"), b = device->create_stream("b");
  std::vector<int> order;
  b->run([&] { order.push_back(1); });
  auto event = b->record();
  a->wait_for(event);
  a->run([&] { order.push_back(2); });
  a->record()->wait("test");
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(CpuDevice, counts_blocks_and_allocations_after_ready) {
  auto device = create_cpu_device({.memory_bytes = 1 << 24});
  auto stream = device->create_stream("engine");
  device->set_ready();
  EXPECT_NE(device->alloc_device(4096), nullptr);
  stream->run([] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
  stream->record()->wait("metadata");
  stream->run([] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
  stream->record()->wait("step_result");
  EXPECT_EQ(device->counters().allocs_after_ready, 1u);
  EXPECT_EQ(device->counters().host_blocks, 1u);
}

TEST(CpuDevice, refuses_more_than_its_memory) {
  auto device = create_cpu_device({.memory_bytes = 1 << 20});
  EXPECT_EQ(device->alloc_device(2 << 20), nullptr);
}

TEST(CpuDeviceDeathTest, pageable_copy_is_refused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  int pageable[4] = {};
  EXPECT_DEATH(
      {
        auto device = create_cpu_device({.memory_bytes = 1 << 20});
        auto stream = device->create_stream("engine");
        stream->copy(device->alloc_device(64), pageable, 16);
      },
      "device or pinned");
}

}  // namespace
}  // namespace tailrace
