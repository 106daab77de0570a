// Contract 2 at the level of a step: between being queued and being done, forward allocates nothing, on any thread.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kernels/cpu/tiny_model.h"

namespace {
std::atomic<long> g_allocations{0};
void* counted(std::size_t bytes) {
  ++g_allocations;
  void* p = std::malloc(bytes);
  if (p == nullptr) std::abort();
  return p;
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace tailrace {
namespace {

TEST(Allocation, a_mixed_step_with_every_sampling_option_allocates_nothing) {
  for (const int run : {0, 1, 2, 3}) {
    const bool reference = run % 2 == 1;
    const TinyConfig config{.format = Format::kQ4_1, .down_format = Format::kQ8_0, .qk_norm = true, .window = 30,
                            .experts = run < 2 ? 0 : 4};
    BackendHarness h(config, reference ? create_reference_backend({}) : create_cpu_backend({.threads = 3}), 4);
    for (RowSampling& s : h.sampling) {
      s = {.temperature = 0.8f, .top_p = 0.9f, .min_p = 0.01f, .repetition_penalty = 1.2f, .presence_penalty = 0.5f,
           .frequency_penalty = 0.5f, .top_k = 50, .num_top_logprobs = 20, .seed = 7, .choice_index = 1, .prompt_len = 5,
           .num_bias = 1, .num_stop_ids = 1, .min_len = 1000};
    }
    h.queue({{0, 1, 1}, {1, 100, 100}, {2, 70, 70, 0}}, h.stream);
    const long before = g_allocations;
    h.stream.drain();
    EXPECT_EQ(g_allocations, before) << h.backend().name();
    const auto canary = std::make_unique<int>(1);
    EXPECT_GT(g_allocations, before);
  }
}

}  // namespace
}  // namespace tailrace
