// split_plan: into how many shares each decode row's keys are cut, chosen per step and KV group from the work there is.
#pragma once

#include <cstdint>

#include "batch/batch.h"

namespace tailrace::cpu {

// Keys are walked in chunks of this many, on a grid of absolute positions, by every attention path: a row's sums do not
// depend on the tile or the batch it shares.
inline constexpr int kKeyChunk = 64;
inline constexpr int kMinSplitKeys = 64;     // below this a split costs more to merge than it saves
inline constexpr int kUnitsPerThread = 8;    // (row, split) units that even out the threads' shares

struct SplitInput {
  const BatchRow* rows = nullptr;
  int32_t num_decode_rows = 0;
  int32_t window = 0;       // 0: full
  int32_t threads = 1;
  int32_t forced = 0;       // --kv-splits N; 0: from the work
};

// Fills first_split [num_decode_rows + 1]: row r owns the splits [first_split[r], first_split[r + 1]), at least one
// unless it is idle.
// Returns the total, at most max_splits(num_decode_rows, threads, forced).
int32_t plan_splits(const SplitInput& input, int32_t* first_split);

// The bound that scratch is sized for: it does not grow with the context.
constexpr int64_t max_splits(int64_t rows, int64_t threads, int64_t forced) {
  return forced > 0 ? rows * forced : rows + threads * kUnitsPerThread;
}

// Keys [begin, end) of share `index` of `count` of a row whose query sits at kv_len - 1; may be empty.
struct KeyRange {
  int64_t begin, end;
};
KeyRange split_range(int64_t kv_len, int64_t window, int64_t count, int64_t index);

}  // namespace tailrace::cpu
