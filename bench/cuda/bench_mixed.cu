// Attention of a mixed step: the decode kernel beside the extend kernel on two streams, as the backend launches them. Checks that
// both together write exactly what each writes alone; then TARGETS' mixed table; `sweep` tries grids and numbers of chunks.
//   bench_mixed [check|small|bench|sweep|all]
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/cuda/attention_together.h"

using namespace tailrace;
using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {

using Case = AttentionCase;

// Both kernels at once, several times with grids of every size, must give the bits of the same plan's kernels in turn: of the last of
// three layers, which share a plan, partials and their flags. Partials are poisoned before: one read too early shows.
int check_case(const Case& c, uint64_t seed, int repeats) {
  constexpr int kCheckedLayers = 3;  // down to 0, whose pool the float64 reference reads
  const int rows = c.rows() - 1, resident = decode_ctas(c.dim, c.group());
  AttentionProblem p(c, kCheckedLayers, seed);
  ExtendRun extend(p, rows);
  int failed = 0;
  for (int ctas : {mixed_defaults(c.dim, c.group()).decode_ctas, resident / 5, resident, 2}) {
    DecodeRun decode(p, rows, resident);
    decode.first_ctas = ctas;
    decode.make_plan(nullptr);
    decode.run(0, nullptr);
    extend.run(0, nullptr);
    GPU_CHECK(cudaDeviceSynchronize());
    const double error = p.worst_error(0, 100, seed);
    const std::vector<__nv_bfloat16> alone = p.out.host;
    int differ = 0;
    TwoStreams streams;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      streams.decode_on_main = repeat % 2 == 0;
      p.out.poison(), decode.partial_out.poison(), decode.partial_ml.poison();
      GPU_CHECK(cudaDeviceSynchronize());
      decode.make_plan(streams.main);
      for (int layer = kCheckedLayers - 1; layer >= 0; --layer) streams.run(decode, extend, layer);
      GPU_CHECK(cudaStreamSynchronize(streams.main));
      p.out.download();
      differ += std::memcmp(p.out.host.data(), alone.data(), alone.size() * sizeof(alone[0])) != 0;
    }
    const bool bad = differ > 0 || !(error < 1e-2);
    failed += bad;
    std::printf("%scheck %-18s ctas %4d: relative error %.2e, %d of %d runs together differ from alone\n", bad ? "FAIL " : "", c.name,
                ctas, error, differ, repeats);
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
  for (const Case& c : cases) failed += check_case(c, ++seed, 20);
  return failed;
}

// For compute-sanitizer.
int run_small_checks() {
  uint64_t seed = std::random_device{}();
  int failed = 0;
  for (const Case& c : {mixed("gpt-oss full", 16, 2, 64, 0, true, 5, 1, 700, 130, 90, ++seed),
                        mixed("qwen3.6 full", 16, 2, 256, 0, false, 3, 1, 700, 70, 63, ++seed)}) {
    failed += check_case(c, ++seed, 2);
  }
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

// Medians of rounds of all, since clocks follow what ran before.
struct Rounds {
  std::vector<std::vector<double>> us;
  template <typename... F>
  explicit Rounds(int rounds, F... time) : us(sizeof...(time)) {
    for (int r = 0; r < rounds; ++r) {
      size_t i = 0;
      (us[i++].push_back(time()), ...);
    }
  }
  double operator[](int i) {
    std::sort(us[i].begin(), us[i].end());
    return us[i][us[i].size() / 2];
  }
};

void run_bench() {
  std::printf("%-20s %4s %8s %8s %8s | %5s %8s %9s %9s | %7s %7s %6s\n", "shape", "rows", "extend", "decode", "in turn",
              "first", "two str.", "/0.9 sum", "/1.15 max", "FI spl2", "/FI", "goal");
  for (const Row& row : table_rows()) {
    const Case& c = row.c;
    const int layers = c.window > 0 ? 4 * kLayers : kLayers, n = c.rows() - 1, resident = decode_ctas(c.dim, c.group());
    AttentionProblem p(c, layers, 7);
    ExtendRun alone(p, n, ExtendRun(p, n).chosen(false)), extend(p, n);
    DecodeRun decode(p, n, resident), beside(p, n, resident);
    beside.first_ctas = mixed_defaults(c.dim, c.group()).decode_ctas;
    TwoStreams streams;
    const auto time = [&](DecodeRun& d, auto run) { return step_us(streams.main, d, layers, run); };
    Rounds us(5, [&] { return time(decode, [&](int l) { alone.run(l, streams.main); }); },
              [&] { return time(decode, [&](int l) { decode.run(l, streams.main); }); },
              [&] { return time(decode, [&](int l) { decode.run(l, streams.main), alone.run(l, streams.main); }); },
              [&] { return time(beside, [&](int l) { streams.run(beside, extend, l); }); });
    std::printf("%-20s %4d %8.1f %8.1f %8.1f | %5d %8.1f %9.2f %9.2f | %7.0f %7.2f %6.0f\n", c.name, n, us[0], us[1], us[2],
                beside.first_ctas, us[3], us[3] / (0.9 * (us[0] + us[1])), us[3] / (1.15 * std::max(us[0], us[1])), row.peer,
                row.peer > 0 ? us[3] / row.peer : 0, row.goal);
  }
}

// Grids before extend and chunks a CTA, in rounds over all of them.
void run_sweep() {
  for (const Row& row : table_rows()) {
    const Case& c = row.c;
    const int layers = c.window > 0 ? 4 * kLayers : kLayers, n = c.rows() - 1, resident = decode_ctas(c.dim, c.group());
    AttentionProblem p(c, layers, 7);
    TwoStreams streams;
    ExtendRun extend(p, n);
    std::printf("%s, %d rows, %d tiles: us by decode's CTAs before extend, with 1-4 chunks a CTA of all %d\n", c.name, n, extend.tiles(),
                resident);
    for (int ctas : {16, 24, 33, 44, 66, 88, 132, 264}) {
      if (ctas > resident) continue;
      const auto time = [&](int chunks) {
        DecodeRun decode(p, n, resident, 0, {chunks, DecodeTuning{}.plenty_tiles});
        decode.first_ctas = ctas;
        return step_us(streams.main, decode, layers, [&](int l) { streams.run(decode, extend, l); });
      };
      Rounds us(3, [&] { return time(1); }, [&] { return time(2); }, [&] { return time(3); }, [&] { return time(4); });
      std::printf("%6d %8.1f %8.1f %8.1f %8.1f\n", ctas, us[0], us[1], us[2], us[3]);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = mode_of(argc, argv, "check small bench sweep");
  int failed = 0;
  if (what == "check" || what == "all") failed = run_checks();
  if (what == "small") failed = run_small_checks();
  if (what == "bench" || what == "all") run_bench();
  if (what == "sweep") run_sweep();
  std::printf(failed ? "%d checks FAILED\n" : "all checks passed\n", failed);
  return failed ? 1 : 0;
}
