// Batch: the device's view of one step. Everything a kernel needs, and nothing that names a model.
// Decode rows come first: row r < num_decode_rows has q_len 1 and its token at offset r. Extend rows follow.
#pragma once

#include <cstdint>

#include "base/format.h"
#include "base/limits.h"
#include "base/request.h"

namespace tailrace {


// One row of the step. Lengths in tokens.
struct BatchRow {
  int32_t slot;     // index into the row-state tables; stable while the sequence runs
  int32_t q_start;  // offset of the row's first token in the step
  int32_t q_len;    // >= 1
  int32_t kv_len;   // keys visible to the row's last token: cached + computed + q_len; 0: an idle row
  int32_t samples;  // 1: the row's last token is sampled from; 0: a middle chunk
  // Of models with recurrent layers. A row's state is updated in place, in the state slot of its own number.
  int32_t state_from;  // 0: the row goes on from its own state; kZeroState; else the checkpoint whose copy it starts from
  int32_t state_save;  // 0: none; else the checkpoint that gets a copy of its state behind the row's last token
};

// An idle row (kv_len 0, q_len 1, samples 0) keeps its place and token in the step and has no work: no KV and no state is
// read or written for it, nothing is sampled or logged. Padding, and decode rows whose stop id was found when the step was queued already.
inline bool idle(const BatchRow& row) { return row.kv_len == 0; }

// KV of one layer group. On a CPU a slot (layer l, block b, token t) of head h holds head_dim contiguous values at
//   pool + ((l * num_blocks + b) * 2 + (0 for K, 1 for V)) * kv_heads * block_size * head_dim
//        + (h * block_size + t) * head_dim
// i.e. [layer][block][K|V][kv_head][token][dim]; on a GPU at kernels/cuda/kv_layout.h's offsets. Block 0 is nobody's.
struct KvGroupView {
  void* pool;                   // values of `format`
  int64_t num_blocks;
  int32_t num_layers, kv_heads, head_dim, block_size;
  int32_t window;               // 0: full
  const int32_t* block_table;   // [max_rows][table_stride]: block of tokens [i * block_size, (i + 1) * block_size)
  int64_t table_stride;         // entries a row; entries before the window are stale and must not be read
  Format format = Format::kBF16;  // or kF8E4M3: rounded to nearest even, beyond 448 to that, never NaN
};

// States of the recurrent layers (GatedDeltaBlock), fp32. Slots 0 .. max_rows - 1 are those of the running rows, by
// BatchRow::slot; checkpoint c (1, 2, ...) is slot max_rows + c - 1. A slot holds of each layer
//   recurrent + slot * recurrent_stride + layer * v_heads * k_dim * v_dim: S [v_head][k_dim][v_dim]
//   conv + slot * conv_stride + layer * (conv_width - 1) * channels: the last inputs [conv_width - 1][channels], oldest first;
//     on a GPU a ring of conv_width (kernels/cuda/gated_delta.h)
// Whoever reads a checkpoint may overwrite it only in a later step, and no two rows of a step save to one.
struct StatePoolView {
  float* recurrent;          // null: the model has no such layers
  float* conv;
  int64_t recurrent_stride;  // values of a slot, all layers
  int64_t conv_stride;
  int32_t first_checkpoint;  // slot of checkpoint 1: max_rows
};

// The slot that a row starts from, its own where that is zeroed; and the one it saves to, or -1.
inline constexpr int64_t state_source(const StatePoolView& states, const BatchRow& row) {
  return row.state_from > 0 ? int64_t{states.first_checkpoint} + row.state_from - 1 : row.slot;
}
inline constexpr int64_t state_target(const StatePoolView& states, const BatchRow& row) {
  return row.state_save > 0 ? int64_t{states.first_checkpoint} + row.state_save - 1 : -1;
}

// Sampling state of a running row, written when the row starts and read by the sampler.
struct RowSampling {
  float temperature, top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t top_k;
  int32_t num_top_logprobs;  // -1: none
  uint64_t seed;
  uint32_t choice_index;
  int32_t prompt_len;        // tokens of the log before this index are the prompt (penalties)
  int32_t num_bias;
  int32_t num_stop_ids;
  int32_t min_len;           // no stop id may be sampled while the log is shorter (prompt_len + min_tokens)
  int32_t constrained;       // 1: only what the slot's mask allows may be sampled; min_tokens is in the mask then
};

// Values from one slot's mask_len to the next: a line of memory each, since a device's reads of one wait for each other.
inline constexpr int64_t kMaskLenStride = 32;

// Tables indexed by slot, which live on the device and are advanced by each step.
struct RowStateView {
  TokenId* token_log;          // [max_rows][log_stride] ids of prompt and output; a decode row's input is
                               // token_log[slot][kv_len - 1], which the sampler of an earlier step wrote
  int64_t log_stride;
  RowSampling* sampling;       // [max_rows]
  TokenId* bias_ids;           // [max_rows][kMaxLogitBias]
  float* bias_values;          // [max_rows][kMaxLogitBias]
  TokenId* stop_ids;           // [max_rows][kMaxStopTokenIds]
  int32_t* stopped;            // [max_rows] 1: the sampler chose a stop id, or came before its mask; 0 when the row starts
  // Pinned host memory, which other threads write while steps run: a mask first, then its mask_len. A row whose kv_len
  // is another when the sampler comes to it is late: it gets kNoToken and is stopped, so that nobody waits for it.
  const uint32_t* masks;       // [max_rows][mask_words] bit i % 32 of word i / 32: whether token i may come next
  const int32_t* mask_len;     // [max_rows][kMaskLenStride] the first: tokens of the log that the slot's mask follows
  int64_t mask_words;
  uint64_t* mask_gate;         // [max_rows] device memory of the CUDA sampler, which asks for a row's mask_len once a step
};

inline constexpr TokenId kNoToken = -1;  // the id of an idle row's result

// What the sampler writes for row i of the step that samples (other rows are left alone, but an idle row gets kNoToken); pinned
// host memory.
struct SampledRow {
  TokenId id;
  float logprob;
  int32_t num_top;
  TokenLogprob top[kMaxTopLogprobs];
};

struct Batch {
  int32_t num_rows, num_decode_rows, num_tokens;
  const BatchRow* rows;      // [num_rows]
  KvGroupView groups[kMaxKvGroups];
  int32_t num_groups;
  StatePoolView states;
  RowStateView state;
  SampledRow* sampled;       // [num_rows], this step's slot of the output ring
};

}  // namespace tailrace
