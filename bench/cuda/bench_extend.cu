// Extend attention: correctness against float64 on fresh random inputs, then TARGETS' table: us, TFLOP/s, ratio to FlashInfer.
//   bench_extend [check|bench|sweep|small|small-fp8|all]; check and bench from pools of bf16 and of e4m3
#include <cstring>
#include <string>

#include "kernels/cuda/attention_launch.h"

using namespace tailrace;
using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {

using Case = AttentionCase;

std::vector<Case> all_cases() {
  std::vector<Case> cases = extend_cases();
  cases.insert(cases.end(), {
      {"dim 64 no sinks", 8, 1, 64, 0, false, {2500, 9}, 0, 0, {40, 9}},
      {"huge pool d64", 64, 8, 64, 0, true, {700, 1500}, 0, 0, {70, 150}, 50000},  // more than 2^31 values
      {"huge pool d128", 32, 8, 128, 0, false, {700, 1500}, 0, 0, {70, 150}, 40000}});
  return cases;
}

// Small enough for racecheck, which takes a thousand times as long.
std::vector<Case> small_cases() {
  return {{"dim 64", 8, 1, 64, 0, true, {200}, 0, 0, {20}}, {"dim 128", 4, 1, 128, 0, false, {200}, 0, 0, {40}},
          {"dim 256", 8, 1, 256, 100, false, {200}, 0, 0, {20}}, {"dim 512", 8, 1, 512, 0, false, {200}, 0, 0, {20}}};
}

int run_checks(const std::vector<Case>& cases, bool fp8) {
  int failed = 0;
  uint64_t seed = std::random_device{}();
  for (const Case& c : cases) {
    AttentionProblem p(c, 1, ++seed, fp8);
    // 8: more than short tiles have blocks; from 5: some tiles stay whole.
    for (const ExtendSplit& split : {ExtendSplit{1, 0}, {2, 0}, {3, 5}, {8, 0}}) {
      ExtendRun extend(p, 0, {split.parts, std::min(split.from, ExtendRun(p, 0, {1, 0}).tiles())});
      const float softcap = split.parts == 2 ? 5 : 0;
      std::vector<__nv_bfloat16> before;
      int differ = 0;
      for (int repeat = 0; repeat < 4; ++repeat) {  // whichever part comes last, the sum is the same
        p.out.poison();
        extend.run(0, nullptr, softcap);
        p.out.download();
        if (repeat > 0) differ += std::memcmp(before.data(), p.out.host.data(), before.size() * sizeof(before[0])) != 0;
        before = p.out.host;
      }
      const double error = p.worst_error(softcap, 300, seed);
      if (!(error < 1e-2) || differ > 0) failed++, std::printf("FAIL ");
      std::printf("check %s%-18s parts %d from %d softcap %g: relative error %.2e, %d repeats differ\n", fp8 ? "fp8 " : "",
                  c.name, split.parts, split.from, softcap, error, differ);
    }
  }
  return failed;
}

struct Shape {
  const char* name;
  int q_heads, kv_heads, dim, window;
  bool sinks;
  double peer[4];  // FlashInfer: 2048 over 0, 2048 over 8k, 8192 over 0, 512 over 8k
};

void run_bench(bool fp8) {
  const Shape shapes[] = {{"gpt-oss full", 64, 8, 64, 0, true, {181, 1236, 2150, 280}},
                          {"gpt-oss window 128", 64, 8, 64, 128, true, {45, 45, 167, 13}},
                          {"gemma4 full", 16, 2, 512, 0, false, {537, 3695, 6639, 850}},
                          {"gemma4 window 1024", 16, 8, 256, 1024, false, {132, 137, 501, 57}},
                          {"qwen3.6 full", 16, 2, 256, 0, false, {167, 1093, 1974, 263}},
                          {"llama", 32, 8, 128, 0, false, {0, 0, 0, 0}}};
  const int chunks[4] = {2048, 2048, 8192, 512}, prefixes[4] = {0, 8192, 0, 8192};
  std::printf("%-20s %-14s %6s %9s %9s %8s %8s\n", "shape", "chunk", "parts", "us", "TFLOP/s", "peer", "/peer");
  for (const Shape& s : shapes) {
    for (int i = 0; i < 4; ++i) {
      const Case c{s.name, s.q_heads, s.kv_heads, s.dim, s.window, s.sinks, {chunks[i] + prefixes[i]}, s.peer[i], 0, {chunks[i]}};
      AttentionProblem p(c, 4, 7, fp8);
      ExtendRun extend(p);
      double pairs = 0;
      for (int t = 0; t < chunks[i]; ++t) {
        const double keys = prefixes[i] + t + 1;
        pairs += s.window > 0 ? std::min<double>(keys, s.window) : keys;
      }
      const double flop = 4.0 * pairs * s.q_heads * s.dim;
      const double us = time_us(4, [&](int l, cudaStream_t stream) { extend.run(l, stream); }, 7);
      std::printf("%s%-20s %5d over %-4d %6d %9.1f %9.0f %8.0f %8.2f\n", fp8 ? "fp8 " : "", s.name, chunks[i], prefixes[i],
                  extend.split.parts, us,
                  flop / us / 1e6, s.peer[i], s.peer[i] > 0 ? us / s.peer[i] : 0);
    }
  }
}

// What extend_split chooses from.
void run_sweep() {
  const Case cases[] = {{"gpt-oss full", 64, 8, 64, 0, true, {}},      {"gemma4 full", 16, 2, 512, 0, false, {}},
                        {"qwen3.6 full", 16, 2, 256, 0, false, {}},    {"llama", 32, 8, 128, 0, false, {}}};
  for (Case c : cases) {
    for (int chunk : {64, 128, 192, 256, 384, 512, 768, 1024}) {
      c.q_lens = {chunk}, c.lens = {8192 + chunk};
      AttentionProblem p(c, 3, 7);
      const ExtendRun chosen(p);
      std::printf("%-16s %5d over 8192: %5d tiles, chosen %d from %d; parts 1, 2, ...:", c.name, chunk, chosen.tiles(),
                  chosen.split.parts, chosen.split.from);
      for (int parts = 1; parts <= kMaxExtendSplits && parts * (chosen.tiles() - chosen.split.from) <= kMaxExtendParts; ++parts) {
        ExtendRun extend(p, 0, {parts, chosen.split.from});
        std::printf(" %6.1f", time_us(3, [&](int l, cudaStream_t stream) { extend.run(l, stream); }, 5));
      }
      std::printf("\n");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = mode_of(argc, argv, "check small small-fp8 bench sweep");
  int failed = 0;
  for (const bool fp8 : {false, true}) {
    if (what == "check" || what == "all") failed += run_checks(all_cases(), fp8);
    if (what == (fp8 ? "small-fp8" : "small")) failed += run_checks(small_cases(), fp8);
    if (what == "bench" || what == "all") run_bench(fp8);
  }
  if (what == "sweep") run_sweep();
  std::printf(failed ? "%d checks FAILED\n" : "all checks passed\n", failed);
  return failed ? 1 : 0;
}
