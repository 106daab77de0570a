// The two attention kernels on an AttentionProblem: its first rows decode, the others extend, as in a step.
#pragma once

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_extend.h"
#include "kernels/cuda/attention_problem.h"

namespace tailrace::cuda::workbench {

// What every extend kernel is checked on: shapes of models, chunks that end at and beside tiles and windows.
inline std::vector<AttentionCase> extend_cases() {
  return {
      {"gpt-oss", 64, 8, 64, 0, true, {1, 64, 65, 200, 1000}, 0, 0, {1, 64, 1, 130, 37}},
      {"gpt-oss window", 64, 8, 64, 128, true, {300, 128, 129, 1000}, 0, 0, {300, 128, 1, 250}},
      {"llama 32/8/128", 32, 8, 128, 0, false, {17, 700, 1500}, 0, 0, {17, 100, 512}},
      {"qwen2 28/4/128", 28, 4, 128, 0, false, {65, 700}, 0, 0, {65, 333}},
      {"mha 4/4/128", 4, 4, 128, 0, false, {129, 700}, 0, 0, {129, 65}},
      {"qwen3.6 16/2/256", 16, 2, 256, 0, false, {64, 1000}, 0, 0, {64, 200}},
      {"gemma 16/8/256 w", 16, 8, 256, 1024, false, {1500, 1024}, 0, 0, {700, 300}},
      {"gemma 16/2/512", 16, 2, 512, 0, false, {64, 65, 900}, 0, 0, {64, 1, 200}},
      {"smollm 9/3/64", 9, 3, 64, 0, false, {100, 700}, 0, 0, {100, 5}},
      {"group 12 of 64", 24, 2, 64, 0, true, {65, 700}, 0, 0, {65, 33}},
      {"group 16 of 128", 32, 2, 128, 0, false, {65, 700}, 0, 0, {65, 33}},
      {"dim 96", 8, 2, 96, 0, false, {100, 700}, 0, 0, {100, 64}}};
}

static __global__ void next_epoch_kernel(unsigned long long* epoch) { ++*epoch; }

// Rows [0, rows) by the decode kernel, planned for `ctas` CTAs.
struct DecodeRun {
  AttentionProblem& p;
  int rows, ctas;
  int first_ctas = ctas;  // CTAs that are launched before extend; the others come late
  DecodeTuning tuning;
  int max_chunks;
  Buffer<char> plan;
  Buffer<float> partial_out;
  Buffer<float2> partial_ml;
  Buffer<unsigned long long> done, epoch;

  DecodeRun(AttentionProblem& problem, int rows, int ctas, int splits = 0, const DecodeTuning& tuning = {})
      : p(problem), rows(rows), ctas(ctas), tuning(tuning),
        max_chunks(std::max(max_decode_chunks(ctas, rows * p.c.kv_heads, tuning.chunks_per_cta), rows * p.c.kv_heads * splits)),
        plan(decode_plan_bytes(max_chunks)), partial_out(decode_partial_out_bytes(p.c.dim, max_chunks) / 4, false),
        partial_ml(max_chunks * 16), done(max_chunks), epoch(1) {
    done.zero();
    epoch.zero();
  }

  // Once a step, as the engine does: the epoch moves on, so that a replay waits for its own partials.
  void make_plan(cudaStream_t s, int splits = 0) {
    next_epoch_kernel<<<1, 1, 0, s>>>(epoch.device);
    plan_decode(reinterpret_cast<DecodePlan*>(plan.device), p.batch.device, rows, p.table.device, p.stride, p.c.kv_heads, p.c.window,
                ctas, splits, tuning, s);
  }
  DecodeParams params(int layer, float softcap = 0) const {
    return {.q = p.q.device, .out = p.out.device, .pool = p.layer_pool(layer),
                          .block_table = p.table.device, .table_stride = p.stride, .rows = p.batch.device,
                          .plan = reinterpret_cast<DecodePlan*>(plan.device), .q_heads = p.c.q_heads, .kv_heads = p.c.kv_heads,
                          .head_dim = p.c.dim, .window = p.c.window, .scale = p.scale(), .softcap = softcap,
                          .sinks = p.c.sinks ? p.sinks.device : nullptr, .partial_out = partial_out.device,
                          .partial_ml = partial_ml.device, .done = done.device, .epoch = epoch.device, .launch_index = layer};
  }
  void run(int layer, cudaStream_t s, float softcap = 0) {
    GPU_CHECK((p.fp8 ? run_decode_fp8 : run_decode)(params(layer, softcap), first_ctas, s));
  }
  void run_late(int layer, cudaStream_t s) {
    DecodeParams late = params(layer);
    late.helped_ctas = first_ctas;
    GPU_CHECK((p.fp8 ? run_decode_fp8 : run_decode)(late, ctas - first_ctas, s));
  }
};

// Rows [first, all) by the extend kernel.
struct ExtendRun {
  AttentionProblem& p;
  int first, tile_rows;
  ExtendSplit split;
  Buffer<int32_t> tile_start;
  Buffer<char> partial;
  Buffer<unsigned long long> arrivals;

  // want: as extend_split says where parts is 0. rows_of_tile: the Hopper kernel's where 0.
  explicit ExtendRun(AttentionProblem& problem, int first = 0, ExtendSplit want = {0, 0}, int rows_of_tile = 0)
      : p(problem), first(first), tile_rows(rows_of_tile > 0 ? rows_of_tile : extend_tile_rows(p.c.dim)),
        split(want.parts > 0 ? want : chosen(first > 0)), tile_start(p.rows - first + 1),
        partial(extend_partial_bytes(p.c.dim, split.parts > 1 ? split.parts * (tiles() - split.from) : 0), false), arrivals(4 * tiles()) {
    arrivals.zero();
    tile_start.host[0] = 0;
    for (int r = first; r < p.rows; ++r) {
      tile_start.host[r - first + 1] =
          tile_start.host[r - first] + extend_tiles(p.c.q_len(r), p.c.group(), tile_rows);
    }
    tile_start.upload();
  }

  ExtendSplit chosen(bool beside_decode) const {
    int sms = 0;
    GPU_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    return (p.fp8 ? extend_split_fp8 : extend_split)(p.c.dim, tiles(), kv_tiles(), p.c.window, sms, beside_decode);
  }
  int tiles() const {
    int n = 0;
    for (int r = first; r < p.rows; ++r) n += extend_tiles(p.c.q_len(r), p.c.group(), tile_rows) * p.c.kv_heads;
    return n;
  }
  // Blocks that the tiles see in all, as the middle token of each row does.
  int64_t kv_tiles() const {
    int64_t n = 0;
    for (int r = first; r < p.rows; ++r) {
      n += int64_t{extend_tiles(p.c.q_len(r), p.c.group(), tile_rows)} * p.c.kv_heads *
           blocks_of(p.c.lens[r] - p.c.q_len(r) / 2);
    }
    return n;
  }

  ExtendParams params(int layer, float softcap = 0) const {
    return {.q = p.q.device, .out = p.out.device, .pool = p.layer_pool(layer),
                                 .block_table = p.table.device, .table_stride = p.stride, .rows = p.batch.device + first,
                                 .tile_start = tile_start.device, .num_rows = p.rows - first,
                                 .num_tiles = tile_start.host[p.rows - first], .q_heads = p.c.q_heads, .kv_heads = p.c.kv_heads,
                                 .head_dim = p.c.dim, .window = p.c.window, .scale = p.scale(), .softcap = softcap,
                                 .sinks = p.c.sinks ? p.sinks.device : nullptr, .split = split, .partial = partial.device,
                                 .arrivals = arrivals.device};
  }
  void run(int layer, cudaStream_t s, float softcap = 0, bool late_decode = false) {
    ExtendParams with = params(layer, softcap);
    with.late_decode = late_decode;
    GPU_CHECK((p.fp8 ? run_extend_hopper_fp8 : run_extend_hopper)(with, s));
  }
};

}  // namespace tailrace::cuda::workbench
