// Slab: everything the host tells the device about one step, packed into one pinned buffer and sent by one copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/request.h"
#include "batch/batch.h"

namespace tailrace {

// Slabs and sampled results that may be alive at once: of one step running, one queued, one being built, and one to spare.
// Launch i uses place i % kStagingRing of every ring.
inline constexpr int kStagingRing = 4;

// Header of a slab. Sections follow at the given byte offsets from the header, each aligned to 64 bytes.
struct SlabHeader {
  uint64_t launch;  // the launch that this slab is for: a slab left from an older one is not applied
  int32_t num_rows, num_decode_rows, num_tokens;
  int32_t num_starts, num_block_patches, num_log_patches;
  int64_t rows_at, starts_at, block_patches_at, log_patches_at;
  int64_t bytes;  // of the whole slab in use
};

// A row's sampling state, written into the row tables of `slot` before the step runs; bias and stop ids follow inline.
struct SlabStart {
  int32_t slot;
  RowSampling sampling;
  int64_t bias_ids_at, bias_values_at, stop_ids_at;  // byte offsets from the header
};

// block_table[group][slot][first .. first + count) = the int32 values at `values_at`
struct SlabBlockPatch {
  int32_t group, slot, first, count;
  int64_t values_at;
};

// token_log[slot][first .. first + count) = the ids at `values_at`
struct SlabLogPatch {
  int32_t slot, first, count, pad;
  int64_t values_at;
};

// Device tables that patches are applied to.
struct PatchTargets {
  BatchRow* rows;  // [max_rows] the rows of the running step
  int32_t* block_table[kMaxKvGroups];
  int64_t table_stride[kMaxKvGroups];
  RowStateView state;
};

// A step without a slab: the same decode rows as the step before, each one token further.
inline void advance_rows(BatchRow* rows, int32_t num_rows) {
  for (int32_t r = 0; r < num_rows; ++r) {
    rows[r].kv_len++;
    rows[r].state_from = rows[r].state_save = 0;  // a decode row goes on from what it has
  }
}

// Decode rows whose stop id a step before has sampled turn idle: the host had planned this step before it knew. Runs behind
// apply_slab or advance_rows.
inline void idle_stopped_rows(BatchRow* rows, int32_t num_decode_rows, const RowStateView& state) {
  for (int32_t r = 0; r < num_decode_rows; ++r) {
    if (state.stopped[rows[r].slot] != 0) rows[r].kv_len = rows[r].samples = 0;
  }
}

// Applies a slab's rows, starts and patches. Runs on the engine stream before the step's forward, so that it is ordered against
// the forward that still reads the tables (hazard 3). The CUDA backend has a kernel of the same meaning.
inline void apply_slab(const std::byte* slab, const PatchTargets& targets) {
  const auto* header = reinterpret_cast<const SlabHeader*>(slab);
  std::memcpy(targets.rows, slab + header->rows_at, sizeof(BatchRow) * header->num_rows);
  const auto* starts = reinterpret_cast<const SlabStart*>(slab + header->starts_at);
  for (int i = 0; i < header->num_starts; ++i) {
    const SlabStart& start = starts[i];
    const int64_t slot = start.slot;
    targets.state.sampling[slot] = start.sampling;
    targets.state.stopped[slot] = 0;
    std::memcpy(targets.state.bias_ids + slot * kMaxLogitBias, slab + start.bias_ids_at,
                sizeof(TokenId) * start.sampling.num_bias);
    std::memcpy(targets.state.bias_values + slot * kMaxLogitBias, slab + start.bias_values_at,
                sizeof(float) * start.sampling.num_bias);
    std::memcpy(targets.state.stop_ids + slot * kMaxStopTokenIds, slab + start.stop_ids_at,
                sizeof(TokenId) * start.sampling.num_stop_ids);
  }
  const auto* blocks = reinterpret_cast<const SlabBlockPatch*>(slab + header->block_patches_at);
  for (int i = 0; i < header->num_block_patches; ++i) {
    const SlabBlockPatch& patch = blocks[i];
    int32_t* row = targets.block_table[patch.group] + patch.slot * targets.table_stride[patch.group];
    std::memcpy(row + patch.first, slab + patch.values_at, sizeof(int32_t) * patch.count);
  }
  const auto* logs = reinterpret_cast<const SlabLogPatch*>(slab + header->log_patches_at);
  for (int i = 0; i < header->num_log_patches; ++i) {
    const SlabLogPatch& patch = logs[i];
    TokenId* row = targets.state.token_log + patch.slot * targets.state.log_stride;
    std::memcpy(row + patch.first, slab + patch.values_at, sizeof(TokenId) * patch.count);
  }
}

}  // namespace tailrace
