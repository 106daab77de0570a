// Bounds that several folders share.
#pragma once

namespace tailrace {

inline constexpr int kMaxKvGroups = 4;  // KV layer groups of a model (full, and one per distinct window)

}  // namespace tailrace
