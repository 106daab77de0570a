// The gated delta rule on the CPU, one v-head of 128 x 128 on one thread: a decode row's token, and 64 tokens of an
// extend row. Every instruction set that this machine has. Run alone: bench_gated_delta_cpu
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "measure.h"
#include "kernels/cpu/gated_delta.h"

namespace tailrace::cpu {
namespace {

constexpr int kDim = 128, kTokens = kDeltaChunk;

std::vector<float> random_values(size_t count, float spread) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

void measure_kernels(const char* name, const DeltaKernels& kernels) {
  const auto q = random_values(kTokens * kDim, 0.09f), k = random_values(kTokens * kDim, 0.09f);
  const auto v = random_values(kTokens * kDim, 1.0f);
  auto state = random_values(kDim * kDim, 0.1f), out = random_values(kTokens * kDim, 0.0f);
  const std::vector<float> g(kTokens, -0.05f), beta(kTokens, 0.5f);
  std::vector<float> room(static_cast<size_t>(delta_scratch_floats(kDim, kDim)));
  const DeltaScratch scratch(room.data(), kDim);
  const DeltaHead head{.q = q.data(), .k = k.data(), .v = v.data(), .stride = kDim, .g = g.data(), .beta = beta.data(),
                       .state = state.data(), .out = out.data(), .out_stride = kDim, .k_dim = kDim, .v_dim = kDim};
  const double step = bench::measure([&] { kernels.step(head); }).best_us;
  const double keys = bench::measure([&] { kernels.chunk_keys(head, kTokens, scratch); }).best_us;
  const double chunk = bench::measure([&] { kernels.chunk(head, kTokens, scratch); }).best_us;
  const double gflops = 2.0 * kTokens * kDim * (3.0 * kDim + kTokens) / chunk / 1e3;
  const double gbs = 3 * 4.0 * kDim * kDim / step / 1e3;
  std::printf("| %s | %.1f | %.0f | %.0f | %.0f | %.2f | %.0f |\n", name, step, gbs, keys, chunk,
              (chunk + keys / 2) / kTokens, gflops);
}

}  // namespace
}  // namespace tailrace::cpu

int main() {
  using namespace tailrace::cpu;
  std::printf("| | token us | GB/s of the state | keys of 64 tokens us | 64 tokens us | us a token, two v-heads a k-head |"
              " GFLOP/s |\n|---|---|---|---|---|---|---|\n");
  measure_kernels("portable", *delta_portable());
#if defined(__x86_64__)
  if (delta_avx2() != nullptr && __builtin_cpu_supports("avx2")) measure_kernels("avx2", *delta_avx2());
  if (delta_avx512() != nullptr && __builtin_cpu_supports("avx512dq")) measure_kernels("avx512", *delta_avx512());
#endif
}
