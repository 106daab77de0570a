// Bounds and marks that several folders share.
#pragma once

namespace tailrace {

inline constexpr int kMaxKvGroups = 4;  // KV layer groups of a model (full, and one per distinct window)

inline constexpr int kZeroState = -1;   // state_from of a row without a past (BatchRow, PlanRow)

}  // namespace tailrace
