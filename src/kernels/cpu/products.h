// Matrix products of a step, cut into tasks of (tokens x row tiles) over the pool, and what is done with each task's result
// while it is still in the cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/step.h"

namespace tailrace::cpu {

inline constexpr int64_t kTaskTokens = 128;          // their activations stay in the second-level cache
inline constexpr int64_t kFewTokens = 16;
inline constexpr int64_t kTaskTiles = 8;             // with many tokens
inline constexpr int64_t kTaskTilesFewTokens = 64;
// Two results of a task, [tokens][tiles * kRowTile] each.
inline constexpr int64_t kResultFloats = kTaskTokens * kTaskTiles * kRowTile;
inline constexpr int64_t kProductFloats = 2 * kResultFloats;
static_assert(kFewTokens * kTaskTilesFewTokens * kRowTile <= kResultFloats);

constexpr int64_t row_tiles(int64_t rows) { return (rows + kRowTile - 1) / kRowTile; }

// One task: tokens [token_begin, token_end) by row tiles [tile_begin, tile_end) of weight `index`.
struct ProductTask {
  int index;
  int64_t token_begin, token_end, tile_begin, tile_end;

  int64_t row_begin() const { return tile_begin * kRowTile; }
  int64_t row_end(const Weight& weight) const { return std::min(weight.rows, tile_end * kRowTile); }
};

// Calls fn(task, thread) for tasks that cover `tokens` x all rows of `count` <= 4 weights.
template <typename F>
void for_products(const Step& step, const Weight* const* weights, int count, int64_t tokens, const F& fn) {
  if (tokens == 0) return;
  int64_t tiles = 0;
  for (int i = 0; i < count; ++i) tiles += row_tiles(weights[i]->rows);
  const int64_t token_chunks = (tokens + kTaskTokens - 1) / kTaskTokens;
  const int64_t even = (tiles * token_chunks + 4 * step.pool.size() - 1) / (4 * step.pool.size());
  const int64_t group = std::clamp<int64_t>(even, 1, tokens > kFewTokens ? kTaskTiles : kTaskTilesFewTokens);
  int64_t first[5] = {};
  for (int i = 0; i < count; ++i) first[i + 1] = first[i] + (row_tiles(weights[i]->rows) + group - 1) / group;
  step.pool.parallel_for(first[count] * token_chunks, [&](int64_t id, int thread) {
    const int64_t chunk = id / first[count], in_chunk = id % first[count];
    int index = 0;
    while (in_chunk >= first[index + 1]) ++index;
    const int64_t begin = (in_chunk - first[index]) * group;
    fn(ProductTask{index, chunk * kTaskTokens, std::min(tokens, (chunk + 1) * kTaskTokens), begin,
                   std::min(row_tiles(weights[index]->rows), begin + group)},
       thread);
  });
}

// y [tokens][y_stride] at the task's place; y points at token 0, row 0 of the weight.
inline void run_product(const Step& step, const Weight& weight, const ProductTask& task, float* y, int64_t y_stride) {
  const InputKind kind = input_kind(weight.format);
  const std::byte* input = step.scratch.inputs[static_cast<int>(kind)] +
                           static_cast<size_t>(task.token_begin) * input_bytes(kind, 1, weight.cols);
  linear(weight, input, task.token_end - task.token_begin, task.tile_begin, task.tile_end,
         y + task.token_begin * y_stride, y_stride);
}

// The same into a task's own array, rows from 0: result [tokens of the task][(tile_end - tile_begin) * kRowTile].
inline void run_product_local(const Step& step, const Weight& weight, const ProductTask& task, float* result) {
  const int64_t stride = (task.tile_end - task.tile_begin) * kRowTile;
  run_product(step, weight, task, result - task.row_begin() - task.token_begin * stride, stride);
}

// Activations x [tokens][x_stride] -> inputs of each kind that `weights` multiply, normed on the way where norm has weights.
void prepare_inputs(const Step& step, const Weight* const* weights, int count, const Norm& norm, const float* x,
                    int64_t x_stride, int64_t tokens);

// x = (x + post_norm(W input)) * out_scale (null: 1), the input prepared before.
void add_product(const Step& step, const Weight& weight, const Norm& post_norm, const float* out_scale = nullptr);

// x = (x + y) * out_scale (null: 1) over `width` values.
void add_scaled_sum(const Step& step, const float* y, const float* out_scale, int64_t width, float* x);

// scratch.gated [tokens][gate.rows] = activation(gate input) * up input, the inputs prepared before.
void gated_products(const Step& step, const Weight& gate, const Weight& up, Activation activation, int64_t tokens);

}  // namespace tailrace::cpu
