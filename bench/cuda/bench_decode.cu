// Decode attention: correctness against float64 on fresh random inputs, then TARGETS' rows: us, floor, % of ceiling, ratio.
//   bench_decode [check|bench|all]
#include <string>

#include "attention_problem.h"
#include "kernels/cuda/attention_decode.h"

using namespace tailrace;
using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {

using Case = AttentionCase;

struct Problem : AttentionProblem {
  int ctas, max_chunks;
  Buffer<char> plan;
  Buffer<float> partial_out;
  Buffer<float2> partial_ml;
  Buffer<unsigned long long> done, epoch;

  Problem(const Case& c, int layers, int ctas, uint64_t seed)
      : AttentionProblem(c, layers, seed), ctas(ctas), max_chunks(max_decode_chunks(ctas, rows * c.kv_heads)),
        plan(decode_plan_bytes(max_chunks)), partial_out(decode_partial_out_bytes(c.dim, max_chunks) / 4),
        partial_ml(max_chunks * 16), done(max_chunks), epoch(1) {
    done.zero();
    epoch.host[0] = 1, epoch.upload();
  }

  DecodeParams params(int layer, float softcap = 0) {
    return {.q = q.device, .out = out.device, .pool = pool.device + layer * layer_values, .block_table = table.device,
            .table_stride = stride, .rows = batch.device, .plan = reinterpret_cast<DecodePlan*>(plan.device),
            .q_heads = c.q_heads, .kv_heads = c.kv_heads, .head_dim = c.dim, .window = c.window, .scale = scale(),
            .softcap = softcap, .sinks = c.sinks ? sinks.device : nullptr, .partial_out = partial_out.device,
            .partial_ml = partial_ml.device, .done = done.device, .epoch = epoch.device, .launch_index = layer};
  }
  void make_plan(cudaStream_t s) {
    plan_decode(reinterpret_cast<DecodePlan*>(plan.device), batch.device, rows, table.device, stride, c.kv_heads, c.window,
                ctas, 0, s);
  }
};

int run_checks() {
  std::vector<Case> cases = {
      {"gpt-oss 1", 64, 8, 64, 0, true, {1}}, {"gpt-oss 63..65", 64, 8, 64, 0, true, {63, 64, 65, 1000, 128, 127, 129}},
      {"gpt-oss long", 64, 8, 64, 0, true, {9000}}, {"gpt-oss window", 64, 8, 64, 128, true, {1, 127, 128, 129, 191, 192, 700}},
      {"llama 32/8/128", 32, 8, 128, 0, false, {5, 700, 64, 1500}}, {"mha 4/4/128", 4, 4, 128, 0, false, {5, 700, 64, 1500}},
      {"qwen2 28/4/128", 28, 4, 128, 0, false, {65, 700, 3000}}, {"group 16", 32, 2, 128, 0, false, {65, 700, 3000}},
      {"qwen3.6 16/2/256", 16, 2, 256, 0, false, {1, 64, 65, 4000}}, {"gemma 16/8/256 w", 16, 8, 256, 1024, false, {1, 1023, 1024, 1025, 3000}},
      {"gemma 16/2/512", 16, 2, 512, 0, false, {1, 65, 2500, 700}}, {"ragged", 64, 8, 64, 0, true, {20000, 1, 2, 3, 64, 65, 100, 1000}},
      {"smollm 9/3/64", 9, 3, 64, 0, false, {1, 100, 700}}, {"dim 96", 8, 2, 96, 0, false, {1, 100, 700}}};
  int failed = 0;
  uint64_t seed = std::random_device{}();
  for (const Case& c : cases) {
    const int resident = decode_ctas(c.dim, c.q_heads / c.kv_heads);
    for (int ctas : {resident, 3, 1}) {
      for (float softcap : {0.0f, 5.0f}) {
        if (softcap > 0 && ctas != resident) continue;
        Problem p(c, 1, ctas, ++seed);
        p.make_plan(nullptr);
        GPU_CHECK(run_decode(p.params(0, softcap), ctas, nullptr));
        GPU_CHECK(cudaDeviceSynchronize());
        const double error = p.worst_error(softcap, 0, seed);
        if (!(error < 8e-3)) failed++, std::printf("FAIL ");
        std::printf("check %-18s ctas %4d softcap %g: relative error %.2e\n", c.name, ctas, softcap, error);
      }
    }
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
  for (const Case& c : cases) {
    double bytes = 0;
    for (int len : c.lens) bytes += 4.0 * c.kv_heads * c.dim * (c.window > 0 ? std::min(len, c.window) : len);
    const double pool_bytes = static_cast<double>(Problem::total_blocks(c)) * c.kv_heads * kv_tile_values(c.dim) * 2;
    const int layers = static_cast<int>(std::clamp(256e6 / std::min(pool_bytes, bytes * 1.5) + 1, 2.0, 60.0));
    if (layers * pool_bytes > 60e9) continue;
    const int ctas = decode_ctas(c.dim, c.q_heads / c.kv_heads);
    Problem p(c, layers, ctas, 5);
    // The plan is made once a step, before the layers; its own time is measured apart and taken off.
    const double plan_us = time_us(20, [&](int, cudaStream_t s) { p.make_plan(s); });
    auto step = [&](int i, cudaStream_t s) {
      if (i == 0) p.make_plan(s);
      GPU_CHECK(run_decode(p.params(i), ctas, s));
    };
    const double us = time_us(layers, step) - plan_us / layers, again = time_us(layers, step) - plan_us / layers;
    std::printf("%-28s %8.2f %8.2f %7.0f %7.1f%% %7.1f %7.2f %7.1f  again %.2f plan %.1f\n", c.name, us, floor_us(bytes, gbs),
                bytes / us / 1000, 100 * bytes / us / 1000 / gbs, c.peer_us, c.peer_us > 0 ? us / c.peer_us : 0, c.goal_us, again,
                plan_us);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  int failed = 0;
  if (what != "bench") failed = run_checks();
  if (what != "check") run_bench();
  std::printf(failed ? "%d checks FAILED\n" : "all checks passed\n", failed);
  return failed ? 1 : 0;
}
