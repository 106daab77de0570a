#include "kernels/cpu/split_plan.h"

#include <algorithm>

#include "kernels/kv_address.h"

namespace tailrace::cpu {
namespace {

int64_t visible_keys(int64_t kv_len, int64_t window) { return kv_len - first_visible(kv_len - 1, window); }

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int32_t plan_splits(const SplitInput& input, int32_t* first_split) {
  int64_t keys = 0;
  for (int32_t r = 0; r < input.num_decode_rows; ++r) keys += visible_keys(input.rows[r].kv_len, input.window);
  const int64_t units = int64_t{input.threads} * kUnitsPerThread;
  const int64_t share = std::max<int64_t>(kMinSplitKeys, divide_up(keys, units));
  first_split[0] = 0;
  for (int32_t r = 0; r < input.num_decode_rows; ++r) {
    const int64_t visible = visible_keys(input.rows[r].kv_len, input.window);
    const int64_t count = input.forced > 0 && visible > 0 ? input.forced : divide_up(visible, share);
    first_split[r + 1] = first_split[r] + static_cast<int32_t>(count);
  }
  return first_split[input.num_decode_rows];
}

KeyRange split_range(int64_t kv_len, int64_t window, int64_t count, int64_t index) {
  const int64_t first = first_visible(kv_len - 1, window);
  const int64_t grid = first / kKeyChunk * kKeyChunk;
  const int64_t share = divide_up(divide_up(kv_len - grid, count), kKeyChunk) * kKeyChunk;
  const int64_t begin = std::clamp(grid + index * share, first, kv_len);
  return {begin, std::clamp(grid + (index + 1) * share, begin, kv_len)};
}

}  // namespace tailrace::cpu
