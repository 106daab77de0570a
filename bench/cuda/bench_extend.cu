// Extend attention: correctness against float64 on fresh random inputs, then TARGETS' table: us, TFLOP/s, ratio to FlashInfer.
//   bench_extend [check|bench|all]
#include <string>

#include "attention_problem.h"
#include "kernels/cuda/attention_extend.h"

using namespace tailrace;
using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {

using Case = AttentionCase;

struct Problem : AttentionProblem {
  Buffer<int32_t> tile_start;

  Problem(const Case& c, int layers, uint64_t seed) : AttentionProblem(c, layers, seed), tile_start(c.rows() + 1) {
    tile_start.host[0] = 0;
    for (int r = 0; r < rows; ++r) {
      tile_start.host[r + 1] = tile_start.host[r] + extend_tiles(c.q_len(r), c.group(), extend_tile_rows(c.dim));
    }
    tile_start.upload();
  }

  ExtendParams params(int layer, float softcap = 0) {
    return {.q = q.device, .out = out.device, .pool = pool.device + layer * layer_values, .block_table = table.device,
            .table_stride = stride, .rows = batch.device, .tile_start = tile_start.device, .num_rows = rows,
            .num_tiles = tile_start.host[rows], .q_heads = c.q_heads, .kv_heads = c.kv_heads, .head_dim = c.dim,
            .window = c.window, .scale = scale(), .softcap = softcap, .sinks = c.sinks ? sinks.device : nullptr};
  }
};

int run_checks() {
  const std::vector<Case> cases = {
      {"gpt-oss", 64, 8, 64, 0, true, {1, 64, 65, 200, 1000}, 0, 0, {1, 64, 1, 130, 37}},
      {"gpt-oss window", 64, 8, 64, 128, true, {300, 128, 129, 1000}, 0, 0, {300, 128, 1, 250}},
      {"llama 32/8/128", 32, 8, 128, 0, false, {17, 700, 1500}, 0, 0, {17, 100, 512}},
      {"qwen2 28/4/128", 28, 4, 128, 0, false, {65, 700}, 0, 0, {65, 333}},
      {"mha 4/4/128", 4, 4, 128, 0, false, {129, 700}, 0, 0, {129, 65}},
      {"qwen3.6 16/2/256", 16, 2, 256, 0, false, {64, 1000}, 0, 0, {64, 200}},
      {"gemma 16/8/256 w", 16, 8, 256, 1024, false, {1500, 1024}, 0, 0, {700, 300}},
      {"gemma 16/2/512", 16, 2, 512, 0, false, {64, 65, 900}, 0, 0, {64, 1, 200}},
      {"smollm 9/3/64", 9, 3, 64, 0, false, {100, 700}, 0, 0, {100, 5}},
      {"dim 96", 8, 2, 96, 0, false, {100, 700}, 0, 0, {100, 64}}};
  int failed = 0;
  uint64_t seed = std::random_device{}();
  for (const Case& c : cases) {
    for (float softcap : {0.0f, 5.0f}) {
      Problem p(c, 1, ++seed);
      GPU_CHECK(run_extend_hopper(p.params(0, softcap), nullptr));
      GPU_CHECK(cudaDeviceSynchronize());
      const double error = p.worst_error(softcap, 300, seed);
      if (!(error < 1e-2)) failed++, std::printf("FAIL ");
      std::printf("check %-18s softcap %g: relative error %.2e\n", c.name, softcap, error);
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

void run_bench() {
  const Shape shapes[] = {{"gpt-oss full", 64, 8, 64, 0, true, {181, 1236, 2150, 280}},
                          {"gpt-oss window 128", 64, 8, 64, 128, true, {45, 45, 167, 13}},
                          {"gemma4 full", 16, 2, 512, 0, false, {537, 3695, 6639, 850}},
                          {"gemma4 window 1024", 16, 8, 256, 1024, false, {132, 137, 501, 57}},
                          {"qwen3.6 full", 16, 2, 256, 0, false, {167, 1093, 1974, 263}},
                          {"llama", 32, 8, 128, 0, false, {0, 0, 0, 0}}};
  const int chunks[4] = {2048, 2048, 8192, 512}, prefixes[4] = {0, 8192, 0, 8192};
  std::printf("%-20s %-14s %9s %9s %8s %8s\n", "shape", "chunk", "us", "TFLOP/s", "peer", "/peer");
  for (const Shape& s : shapes) {
    for (int i = 0; i < 4; ++i) {
      const Case c{s.name, s.q_heads, s.kv_heads, s.dim, s.window, s.sinks, {chunks[i] + prefixes[i]}, s.peer[i], 0, {chunks[i]}};
      Problem p(c, 4, 7);
      double pairs = 0;
      for (int t = 0; t < chunks[i]; ++t) {
        const double keys = prefixes[i] + t + 1;
        pairs += s.window > 0 ? std::min<double>(keys, s.window) : keys;
      }
      const double flop = 4.0 * pairs * s.q_heads * s.dim;
      const double us = time_us(4, [&](int l, cudaStream_t stream) { GPU_CHECK(run_extend_hopper(p.params(l), stream)); }, 7);
      std::printf("%-20s %5d over %-4d %9.1f %9.0f %8.0f %8.2f\n", s.name, chunks[i], prefixes[i], us, flop / us / 1e6,
                  s.peer[i], s.peer[i] > 0 ? us / s.peer[i] : 0);
    }
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
