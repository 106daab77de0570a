// Where a KV value lies in a group's pool (the formula of batch.h), and which keys a query sees: shared by all CPU paths.
#pragma once

#include <cstdint>

#include "base/test_fault.h"
#include "batch/batch.h"

namespace tailrace {

// Offset in elements of token 0 of (layer, block, K or V, head). In 64 bits: a pool passes 2^31 elements at 4 GB.
static inline int64_t kv_offset(const KvGroupView& kv, int64_t layer, int64_t block, int is_value, int64_t head) {
  const int64_t tile = static_cast<int64_t>(kv.block_size) * kv.head_dim;
  if (test_fault(Fault::kIndex32Bit)) {
    const auto page = static_cast<uint32_t>((layer * kv.num_blocks + block) * 2 + is_value);
    return static_cast<int32_t>((page * static_cast<uint32_t>(kv.kv_heads) + static_cast<uint32_t>(head)) *
                                static_cast<uint32_t>(tile));
  }
  return (((layer * kv.num_blocks + block) * 2 + is_value) * kv.kv_heads + head) * tile;
}

// The block that holds token `position` of the row at `slot`.
static inline int64_t kv_block(const KvGroupView& kv, int64_t slot, int64_t position) {
  return kv.block_table[slot * kv.table_stride + position / kv.block_size];
}

// First key that a query at `position` sees: 0 <= position - j < window, the query itself counted (window 0: all).
static inline int64_t first_visible(int64_t position, int64_t window) {
  if (window <= 0) return 0;
  const int64_t counted = test_fault(Fault::kWindowOffByOne) ? window + 1 : window;
  return position >= counted ? position - counted + 1 : 0;
}

}  // namespace tailrace
