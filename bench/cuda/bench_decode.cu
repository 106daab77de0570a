// Decode attention: correctness against float64 on fresh random inputs, then TARGETS' rows: us, floor, % of ceiling, ratio.
//   bench_decode [check|bench|small|small-fp8|all]; check and bench from pools of bf16 and of e4m3
#include <string>

#include "kernels/cuda/attention_launch.h"

using namespace tailrace;
using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {

using Case = AttentionCase;

std::vector<Case> all_cases() {
  std::vector<Case> cases = {
      {"gpt-oss 1", 64, 8, 64, 0, true, {1}}, {"gpt-oss 63..65", 64, 8, 64, 0, true, {63, 64, 65, 1000, 128, 127, 129}},
      {"gpt-oss long", 64, 8, 64, 0, true, {9000}}, {"gpt-oss window", 64, 8, 64, 128, true, {1, 127, 128, 129, 191, 192, 700}},
      {"llama 32/8/128", 32, 8, 128, 0, false, {5, 700, 64, 1500}}, {"mha 4/4/128", 4, 4, 128, 0, false, {5, 700, 64, 1500}},
      {"qwen2 28/4/128", 28, 4, 128, 0, false, {65, 700, 3000}}, {"group 16", 32, 2, 128, 0, false, {65, 700, 3000}},
      {"qwen3.6 16/2/256", 16, 2, 256, 0, false, {1, 64, 65, 4000}}, {"gemma 16/8/256 w", 16, 8, 256, 1024, false, {1, 1023, 1024, 1025, 3000}},
      {"gemma 16/2/512", 16, 2, 512, 0, false, {1, 65, 2500, 700}}, {"ragged", 64, 8, 64, 0, true, {20000, 1, 2, 3, 64, 65, 100, 1000}},
      {"group 16 of 64", 32, 2, 64, 0, true, {65, 700, 3000}}, {"group 12 of 64", 24, 2, 64, 128, false, {1, 127, 700}},
      {"group 16 of 256", 32, 2, 256, 0, false, {65, 700, 3000}},
      {"smollm 9/3/64", 9, 3, 64, 0, false, {1, 100, 700}}, {"dim 96", 8, 2, 96, 0, false, {1, 100, 700}}};
  // More than 2^31 values in the pool.
  cases.push_back({"huge pool", 32, 8, 128, 0, false, {5, 700, 4000}, 0, 0, {}, 40000});
  return cases;
}

// Small enough for racecheck, which takes a thousand times as long.
std::vector<Case> small_cases() {
  return {{"dim 64", 8, 1, 64, 0, true, {130, 65}}, {"dim 128", 4, 1, 128, 0, false, {130}}, {"dim 256", 8, 1, 256, 100, false, {130}},
          {"dim 512", 8, 1, 512, 0, false, {130}}, {"group 16 of 64", 16, 1, 64, 0, true, {130}}};
}

int run_checks(const std::vector<Case>& cases, bool fp8) {
  int failed = 0;
  uint64_t seed = std::random_device{}();
  for (const Case& c : cases) {
    const int resident = (fp8 ? decode_ctas_fp8 : decode_ctas)(c.dim, c.q_heads / c.kv_heads);
    AttentionProblem p(c, 1, ++seed, fp8);
    auto check = [&](int ctas, int splits, float softcap) {
      DecodeRun decode(p, p.rows, ctas, splits);
      p.out.poison();
      decode.make_plan(nullptr, splits);
      decode.run(0, nullptr, softcap);
      GPU_CHECK(cudaDeviceSynchronize());
      const double error = p.worst_error(softcap, 0, seed);
      if (!(error < 8e-3)) failed++, std::printf("FAIL ");
      std::printf("check %s%-18s ctas %4d splits %d softcap %g: relative error %.2e\n", fp8 ? "fp8 " : "", c.name, ctas,
                  splits, softcap, error);
    };
    for (int ctas : {resident, 3, 1}) check(ctas, 0, 0);
    check(resident, 7, 0);  // more than short rows have blocks
    check(resident, 0, 5);
  }
  return failed;
}

std::vector<int> same(int rows, int len) { return std::vector<int>(rows, len); }

double floor_us(double bytes, double gbs) {
  // Cold reads below 64 MiB, from TARGETS; beyond, the ceiling of this run.
  const double mib[] = {1, 4, 16, 64}, us[] = {1.9, 3.3, 6.0, 17.4};
  const double m = bytes / (1 << 20);
  if (m >= 64) return bytes / gbs / 1000;
  if (m <= 1) return 1.5 + 0.4 * m;
  for (int i = 0; i < 3; ++i) {
    if (m <= mib[i + 1]) return us[i] + (us[i + 1] - us[i]) * std::log(m / mib[i]) / std::log(mib[i + 1] / mib[i]);
  }
  return 0;
}

void run_bench() {
  const double gbs = read_ceiling_gbs();
  std::printf("ceiling: read %.0f GB/s\n", gbs);
  std::vector<int> ragged = same(63, 1024);
  ragged.insert(ragged.begin(), 200 * 1024);
  const std::vector<Case> cases = {
      {"gpt-oss full b1 1k", 64, 8, 64, 0, true, same(1, 1024), 10.3, 5}, {"gpt-oss full b1 8k", 64, 8, 64, 0, true, same(1, 8192), 15.4, 10},
      {"gpt-oss full b1 32k", 64, 8, 64, 0, true, same(1, 32768), 30.7, 21}, {"gpt-oss full b1 128k", 64, 8, 64, 0, true, same(1, 131072), 79, 67},
      {"gpt-oss full b8 8k", 64, 8, 64, 0, true, same(8, 8192), 47.4, 36}, {"gpt-oss full b64 1k", 64, 8, 64, 0, true, same(64, 1024), 46.9, 36},
      {"gpt-oss full b64 8k", 64, 8, 64, 0, true, same(64, 8192), 272, 252}, {"gpt-oss full b64 32k", 64, 8, 64, 0, true, same(64, 32768), 1044, 1000},
      {"gpt-oss w128 b1", 64, 8, 64, 128, true, same(1, 4096), 5.3, 3.5}, {"gpt-oss w128 b64", 64, 8, 64, 128, true, same(64, 4096), 15.8, 9},
      {"gemma4 full b1 1k", 16, 2, 512, 0, false, same(1, 1024), 14.3, 7}, {"gemma4 full b1 8k", 16, 2, 512, 0, false, same(1, 8192), 22.9, 15},
      {"gemma4 full b1 32k", 16, 2, 512, 0, false, same(1, 32768), 48.8, 37}, {"gemma4 full b1 128k", 16, 2, 512, 0, false, same(1, 131072), 140, 128},
      {"gemma4 full b64 8k", 16, 2, 512, 0, false, same(64, 8192), 495, 490}, {"gemma4 w1024 b1", 16, 8, 256, 1024, false, same(1, 4096), 12.8, 7},
      {"gemma4 w1024 b64", 16, 8, 256, 1024, false, same(64, 4096), 132, 125}, {"qwen3.6 full b1 1k", 16, 2, 256, 0, false, same(1, 1024), 11.7, 5},
      {"qwen3.6 full b1 8k", 16, 2, 256, 0, false, same(1, 8192), 16.3, 10}, {"qwen3.6 full b1 32k", 16, 2, 256, 0, false, same(1, 32768), 33.5, 21},
      {"qwen3.6 full b1 192k", 16, 2, 256, 0, false, same(1, 196608), 110, 98}, {"qwen3.6 full b8 8k", 16, 2, 256, 0, false, same(8, 8192), 45.3, 36},
      {"qwen3.6 full b64 8k", 16, 2, 256, 0, false, same(64, 8192), 258, 243}, {"gpt-oss ragged 200k+63x1k", 64, 8, 64, 0, true, ragged, 0, 0}};
  std::printf("%-28s %8s %8s %7s %8s %7s %7s %7s\n", "shape", "us", "floor", "GB/s", "% ceil", "peer", "/peer", "goal");
  const auto bench = [&](const Case& c, bool fp8) {
    double bytes = 0;
    for (int len : c.lens) bytes += (fp8 ? 2.0 : 4.0) * c.kv_heads * c.dim * (c.window > 0 ? std::min(len, c.window) : len);
    const double pool_bytes =
        static_cast<double>(AttentionProblem::total_blocks(c)) * c.kv_heads * kv_tile_values(c.dim) * (fp8 ? 1 : 2);
    const int layers = static_cast<int>(std::clamp(256e6 / std::min(pool_bytes, bytes * 1.5) + 1, 2.0, 60.0));
    if (layers * pool_bytes > 60e9) return;
    const int ctas = (fp8 ? decode_ctas_fp8 : decode_ctas)(c.dim, c.q_heads / c.kv_heads);
    AttentionProblem p(c, layers, 5, fp8);
    DecodeRun decode(p, p.rows, ctas);
    // The plan is made once a step, before the layers; its own time is measured apart and taken off.
    const double plan_us = time_us(20, [&](int, cudaStream_t s) { decode.make_plan(s); });
    auto step = [&](int i, cudaStream_t s) {
      if (i == 0) decode.make_plan(s);
      decode.run(i, s);
    };
    const double us = time_us(layers, step) - plan_us / layers, again = time_us(layers, step) - plan_us / layers;
    const std::string name = std::string(fp8 ? "fp8 " : "") + c.name;
    const double peer = fp8 ? 0 : c.peer_us, goal = fp8 ? 0 : c.goal_us;  // of bf16
    std::printf("%-28s %8.2f %8.2f %7.0f %7.1f%% %7.1f %7.2f %7.1f  again %.2f plan %.1f\n", name.c_str(), us,
                floor_us(bytes, gbs), bytes / us / 1000, 100 * bytes / us / 1000 / gbs, peer, peer > 0 ? us / peer : 0,
                goal, again, plan_us);
  };
  for (const bool fp8 : {false, true}) {
    for (const Case& c : cases) bench(c, fp8);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = mode_of(argc, argv, "check small small-fp8 bench");
  int failed = 0;
  for (const bool fp8 : {false, true}) {
    if (what == "check" || what == "all") failed += run_checks(all_cases(), fp8);
    if (what == (fp8 ? "small-fp8" : "small")) failed += run_checks(small_cases(), fp8);
  }
  if (what == "bench" || what == "all") run_bench();
  std::printf(failed ? "%d checks FAILED\n" : "all checks passed\n", failed);
  return failed ? 1 : 0;
}
