// Attention of a mixed step: the decode kernel beside the extend kernel on two streams, as the backend launches them. Checks that
// both together write exactly what each writes alone; then TARGETS' mixed table; `sweep` tries grids and orders of launch.
//   bench_mixed [check|bench|sweep|all]
#include <cstring>
#include <memory>
#include <string>

#include "kernels/cuda/attention_together.h"

using namespace tailrace;
using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {

using Case = AttentionCase;

// Both kernels at once, several times with grids of every size, must give the bits of the same plan's kernels in turn.
int check_case(const Case& c, uint64_t seed) {
  const int rows = c.rows() - 1, resident = decode_ctas(c.dim, c.group());
  AttentionProblem p(c, 1, seed);
  ExtendRun extend(p, rows);
  int failed = 0;
  for (int ctas : {mixed_defaults(c.dim, c.group()).decode_ctas, resident, 2}) {
    DecodeRun decode(p, rows, ctas);
    decode.make_plan(nullptr);
    decode.run(0, nullptr);
    extend.run(0, nullptr);
    GPU_CHECK(cudaDeviceSynchronize());
    const double error = p.worst_error(0, 100, seed);
    const std::vector<__nv_bfloat16> alone = p.out.host;
    int differ = 0;
    TwoStreams streams;
    for (int repeat = 0; repeat < 20; ++repeat) {
      streams.decode_on_main = repeat % 2 == 0;
      p.out.poison();
      GPU_CHECK(cudaDeviceSynchronize());
      decode.make_plan(streams.main);
      streams.run(decode, extend, 0);
      GPU_CHECK(cudaStreamSynchronize(streams.main));
      p.out.download();
      differ += std::memcmp(p.out.host.data(), alone.data(), alone.size() * sizeof(alone[0])) != 0;
    }
    const bool bad = differ > 0 || !(error < 1e-2);
    failed += bad;
    std::printf("%scheck %-18s ctas %4d: relative error %.2e, %d of 20 runs together differ from alone\n", bad ? "FAIL " : "", c.name,
                ctas, error, differ);
  }
  return failed;
}

int run_checks() {
  uint64_t seed = std::random_device{}();
  const Case cases[] = {mixed("gpt-oss full", 64, 8, 64, 0, true, 20, 1, 3000, 700, 900, ++seed),
                        mixed("gpt-oss window", 64, 8, 64, 128, true, 33, 1, 1000, 1500, 129, ++seed),
                        mixed("llama", 32, 8, 128, 0, false, 9, 1, 4000, 600, 64, ++seed),
                        mixed("qwen3.6 full", 16, 2, 256, 0, false, 9, 1, 4000, 1500, 63, ++seed),
                        mixed("gemma4 full", 16, 2, 512, 0, false, 9, 1, 3000, 600, 100, ++seed)};
  int failed = 0;
  for (const Case& c : cases) failed += check_case(c, ++seed);
  return failed;
}

struct Row {
  Case c;
  double peer, goal;  // FlashInfer's two kernels on two streams, and TARGETS' goal
};

std::vector<Row> table_rows() {
  const auto step = [](const char* name, int q, int kv, int dim, int window, bool sinks, int n, int chunk = 2048) {
    return mixed(name, q, kv, dim, window, sinks, n, 4096, 16384, chunk, 8192);
  };
  return {
      {step("gpt-oss full", 64, 8, 64, 0, true, 32), 1371, 1300},
      {step("gpt-oss full", 64, 8, 64, 0, true, 128), 1844, 1700},
      {step("gemma4 full", 16, 2, 512, 0, false, 32), 3762, 3500},
      {step("gemma4 window 1024", 16, 8, 256, 1024, false, 128), 394, 330},
      {step("qwen3.6 full", 16, 2, 256, 0, false, 32), 1169, 1130},
      {step("qwen3.6 full", 16, 2, 256, 0, false, 128), 1690, 1550},
      {step("gpt-oss window 128", 64, 8, 64, 128, true, 128), 0, 0},
      {step("llama", 32, 8, 128, 0, false, 32), 0, 0},
      {step("gpt-oss full, 256", 64, 8, 64, 0, true, 32, 256), 0, 0},
      {step("gemma4 full, 256", 16, 2, 512, 0, false, 32, 256), 0, 0},
      {step("qwen3.6 full, 256", 16, 2, 256, 0, false, 32, 256), 0, 0},
      {step("llama, 256", 32, 8, 128, 0, false, 32, 256), 0, 0},
  };
}

constexpr int kLayers = 2;  // each far larger than the L2, or, for windows, followed by as much

void run_bench() {
  std::printf("%-20s %4s %8s %8s %8s | %5s %5s %8s %9s %9s | %7s %7s %6s\n", "shape", "rows", "extend", "decode", "in turn",
              "ctas", "parts", "two str.", "/0.9 sum", "/1.15 max", "FI spl2", "/FI", "goal");
  for (const Row& row : table_rows()) {
    const Case& c = row.c;
    const int layers = c.window > 0 ? 4 * kLayers : kLayers, n = c.rows() - 1;
    AttentionProblem p(c, layers, 7);
    ExtendRun alone(p, n, ExtendRun(p, n).chosen(false)), extend(p, n);
    DecodeRun decode(p, n, decode_ctas(c.dim, c.group())), beside(p, n, mixed_defaults(c.dim, c.group()).decode_ctas);
    TwoStreams streams;
    const auto time = [&](DecodeRun& d, auto run) { return step_us(streams.main, d, layers, run); };
    const double extend_us = time(decode, [&](int l) { alone.run(l, streams.main); });
    const double decode_us = time(decode, [&](int l) { decode.run(l, streams.main); });
    const double turn_us = time(decode, [&](int l) { decode.run(l, streams.main), alone.run(l, streams.main); });
    const double both_us = time(beside, [&](int l) { streams.run(beside, extend, l); });
    std::printf("%-20s %4d %8.1f %8.1f %8.1f | %5d %5d %8.1f %9.2f %9.2f | %7.0f %7.2f %6.0f\n", c.name, n, extend_us, decode_us, turn_us,
                beside.ctas, extend.split.parts, both_us, both_us / (0.9 * (extend_us + decode_us)), both_us / (1.15 * std::max(extend_us, decode_us)),
                row.peer, row.peer > 0 ? both_us / row.peer : 0, row.goal);
  }
}

void run_sweep() {
  for (const Row& row : table_rows()) {
    const Case& c = row.c;
    const int layers = c.window > 0 ? 4 * kLayers : kLayers, n = c.rows() - 1, resident = decode_ctas(c.dim, c.group());
    AttentionProblem p(c, layers, 7);
    TwoStreams streams;
    std::printf("%s, %d rows: ctas, us alone, then together, extend or decode on the main stream, with extend cut as headed\n",
                c.name, n);
    std::printf("   parts, from, alone:");
    std::vector<std::unique_ptr<ExtendRun>> extends;
    DecodeRun none(p, n, resident);
    const int tiles = ExtendRun(p, n, {1, 0}).tiles(), held = c.dim == 64 ? 264 : 132;
    for (ExtendSplit split : {ExtendSplit{1, 0}, {2, std::max(0, tiles - held)}, {4, std::max(0, tiles - held)}}) {
      if ( c.window > 0 && split.parts > 1) continue;
      auto extend = std::make_unique<ExtendRun>(p, n, split);
      std::printf("  %d %4d %8.1f", split.parts, split.from,
                  step_us(streams.main, none, layers, [&](int l) { extend->run(l, streams.main); }));
      extends.push_back(std::move(extend));
    }
    std::printf("\n");
    for (int ctas : {32, 48, 64, 80, 100, 132, 264}) {
      if (ctas > resident) continue;
      DecodeRun decode(p, n, ctas);
      std::printf("%6d %8.1f  ", ctas, step_us(streams.main, decode, layers, [&](int l) { decode.run(l, streams.main); }));
      for (auto& extend : extends) {
        for (bool on_main : {false, true}) {
          streams.decode_on_main = on_main;
          std::printf(" %8.1f", step_us(streams.main, decode, layers, [&](int l) { streams.run(decode, *extend, l); }));
        }
      }
      std::printf("\n");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = mode_of(argc, argv, "check bench sweep");
  int failed = 0;
  if (what == "check" || what == "all") failed = run_checks();
  if (what == "bench" || what == "all") run_bench();
  if (what == "sweep") run_sweep();
  std::printf(failed ? "%d checks FAILED\n" : "all checks passed\n", failed);
  return failed ? 1 : 0;
}
