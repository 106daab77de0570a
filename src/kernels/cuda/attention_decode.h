// Decode attention on CUDA: one query token per row over its paged KV. plan once per step and group, run once per layer.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "batch/batch.h"
#include "kernels/tuning.h"

namespace tailrace::cuda {

// A run of blocks of one (row, KV head) unit: the piece of work that a CTA takes at a time. One load tells a CTA all it needs
// to ask for KV. A unit's chunks have consecutive indices; a chunk's index is also its partial's.
inline constexpr int kChunkIds = 7;
struct alignas(64) DecodeChunk {
  int32_t row, head, slot, kv_len;
  int32_t first_block, num_blocks;  // block-table entries [first_block, first_block + num_blocks)
  int32_t unit_first, unit_chunks;  // the unit's chunks: [unit_first, unit_first + unit_chunks)
  int32_t chunk;                    // this one's place among them
  int32_t ids[kChunkIds];           // pool blocks of its first entries
};

// A step's work on one KV group, made on the device from the rows' lengths: units are cut into equal chunks, as many as keep
// every CTA busy to the end (some SMs read faster than others, so CTAs take chunks by ticket), but no more.
struct DecodePlan {
  int32_t num_chunks, num_rows;
  // Behind this, at the offsets below:
  //   unsigned tickets[kMaxLaunches]   next chunk of each launch of the step, beyond the grid's first
  //   int32_t row_first[max_rows + 1]  chunks before a row
  //   DecodeChunk chunks[max_chunks]
};
inline constexpr int kMaxLaunches = 256;  // attention launches of one step that share a plan
inline constexpr int kMaxPlanRows = 2048;
inline constexpr int kUnsplitBlocks = 3;  // a unit this short is one chunk: its merge would cost more than its tiles
inline constexpr size_t kTicketsAt = 64, kRowFirstAt = kTicketsAt + 4 * kMaxLaunches;
inline constexpr size_t kChunksAt = kRowFirstAt + 4 * (kMaxPlanRows + 64) / 64 * 64;
inline int max_decode_chunks(int ctas, int max_units, int chunks_per_cta) {
  return (chunks_per_cta + 1) * ctas + max_units;  // rounding gives a unit at most one chunk more than its share
}
inline size_t decode_plan_bytes(int max_chunks) { return kChunksAt + sizeof(DecodeChunk) * max_chunks; }

// Writes the plan of rows [0, num_rows) on the device: once per step and KV group. An idle row gets no chunk, and no output. ctas: decode_ctas (or fewer). splits: 0, or
// the chunks that every unit is cut into (A/B), as far as it has blocks.
void plan_decode(DecodePlan* plan, const BatchRow* rows, int num_rows, const int32_t* block_table, int64_t table_stride,
                 int kv_heads, int window, int ctas, int splits, const DecodeTuning& tuning, cudaStream_t stream);

struct DecodeParams {
  const __nv_bfloat16* q;      // [rows][q_heads][head_dim]
  __nv_bfloat16* out;          // [rows][q_heads][head_dim]
  const void* pool;            // of the layer: tiles [block][kv_head] (kv_layout.h)
  const int32_t* block_table;  // [slots][table_stride]
  int64_t table_stride;
  const BatchRow* rows;
  const DecodePlan* plan;
  int q_heads, kv_heads, head_dim;
  int window;                  // 0: full; counts the query
  float scale;
  float softcap;               // 0: none
  const float* sinks;          // [q_heads] or null
  // Scratch, claimed once at its maximum: a partial per chunk.
  float* partial_out;               // [max_chunks][16][padded head_dim]
  float2* partial_ml;               // [max_chunks][16] running maximum (log2) and denominator
  unsigned long long* done;         // [max_chunks] the last launch that has written this partial
  const unsigned long long* epoch;  // device counter that differs for every step
  int launch_index;                 // of the launches that share a plan in a step, < kMaxLaunches
  // Late CTAs: 0, or the grid of the launch that this one helps. They take that launch's chunks by ticket, merge nothing, and are
  // queued on the stream of a kernel that lets them start when all of its own CTAs have (ExtendParams::late_decode).
  int helped_ctas = 0;
};

// CTAs of this head_dim that the device holds at once: the grid, since CTAs wait for each other's partials. Beside another kernel
// some of them start late; that is safe as long as the other's CTAs wait for nothing of this launch, as extend's do.
int decode_ctas(int head_dim, int group);
// How decode runs beside extend where no table says it. Its first CTAs, at head_dim 64 one an SM, beside one of extend's, else one on
// half of the SMs, which still read at nearly full speed, must be in place before extend's: launch them on the stream that both wait
// for, extend on a second one, and the late ones behind it there.
MixedTuning mixed_defaults(int head_dim, int group);
size_t decode_partial_out_bytes(int head_dim, int max_chunks);

// kUnsupported shapes are refused at boot by decode_supported.
bool decode_supported(int head_dim, int q_heads, int kv_heads);
cudaError_t run_decode(const DecodeParams& params, int ctas, cudaStream_t stream);

// The same from a pool of e4m3.
int decode_ctas_fp8(int head_dim, int group);
MixedTuning mixed_defaults_fp8(int head_dim, int group);
cudaError_t run_decode_fp8(const DecodeParams& params, int ctas, cudaStream_t stream);

}  // namespace tailrace::cuda
