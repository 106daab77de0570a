// The mixture of experts on the CPU: tokens are ordered by expert, so that a step reads the matrices of the experts it
// chose, once (per kMoeTokens tokens), and no others. A token's sums have an order that its neighbours do not change.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/products.h"
#include "kernels/cpu/step.h"

namespace tailrace::cpu {
namespace {

// Tokens [begin, begin + count) of the step at one mixture.
struct Pass {
  const Step& step;
  const MoeBlock& block;
  int64_t begin, count;
  int64_t num_chunks = 0;
  int64_t longest = 0;  // entries of a chunk

  const MoeScratch& scratch() const { return step.scratch.moe; }
  float* x() const { return step.scratch.x + begin * block.router.cols; }
  int64_t entries() const { return count * block.top_k; }
};

// The top_k largest logits, largest first, ties to the lower id, and the softmax over them.
void choose(const float* logits, int64_t experts, int top_k, int32_t* ids, float* weights) {
  for (int i = 0; i < top_k; ++i) {
    int32_t best = -1;
    for (int32_t e = 0; e < experts; ++e) {
      if (std::find(ids, ids + i, e) != ids + i) continue;
      if (best < 0 || logits[e] > logits[best]) best = e;
    }
    ids[i] = best;
  }
  float sum = 0;
  for (int i = 0; i < top_k; ++i) sum += weights[i] = std::exp(logits[ids[i]] - logits[ids[0]]);
  for (int i = 0; i < top_k; ++i) weights[i] /= sum;
}

void route(const Pass& pass) {
  const MoeScratch& s = pass.scratch();
  const Weight& router = pass.block.router;
  const Weight* weights[] = {&router};
  const InputKind kind = input_kind(router.format);
  const int64_t experts = router.rows, row = static_cast<int64_t>(input_bytes(kind, 1, router.cols));
  const std::byte* input = pass.step.scratch.inputs[static_cast<int>(kind)];
  for_products(pass.step, weights, 1, pass.count, [&](const ProductTask& task, int) {
    linear(router, input + task.token_begin * row, task.token_end - task.token_begin, task.tile_begin, task.tile_end,
           s.logits + task.token_begin * experts, experts);
  });
  const int top_k = pass.block.top_k;
  pass.step.for_tokens(pass.count, experts * top_k, [&](int64_t t, int) {
    int32_t* ids = s.ids + t * top_k;
    float* shares = s.weights + t * top_k;
    choose(s.logits + t * experts, experts, top_k, ids, shares);
    for (int i = 0; i < top_k && pass.block.expert_scale != nullptr; ++i) shares[i] *= pass.block.expert_scale[ids[i]];
  });
}

// Orders the entries by expert, within one by token, and cuts them into chunks of up to kTaskTokens.
void group(Pass& pass) {
  const MoeScratch& s = pass.scratch();
  const int64_t experts = pass.block.router.rows, entries = pass.entries();
  uint64_t distinct = 0;
  std::fill_n(s.first, experts + 1, 0);
  for (int64_t i = 0; i < entries; ++i) ++s.first[s.ids[i] + 1];
  for (int64_t e = 0; e < experts; ++e) {
    distinct += s.first[e + 1] > 0;
    for (int32_t at = s.first[e], end = s.first[e] + s.first[e + 1]; at < end; at += kTaskTokens) {
      int32_t* chunk = s.chunks + 3 * pass.num_chunks++;
      chunk[0] = static_cast<int32_t>(e), chunk[1] = at, chunk[2] = std::min<int32_t>(end, at + kTaskTokens);
      pass.longest = std::max<int64_t>(pass.longest, chunk[2] - chunk[1]);
    }
    s.first[e + 1] += s.first[e];
  }
  for (int64_t i = 0; i < entries; ++i) {
    const int32_t at = s.first[s.ids[i]]++;  // ends up as the next expert's first
    s.entry[i] = at;
    s.token[at] = static_cast<int32_t>(i / pass.block.top_k);
  }
  if (ExpertCounts* counts = pass.step.experts) counts->mixtures += pass.begin == 0, counts->distinct += distinct;
}

// Calls fn(chunk, tile_begin, tile_end, thread) for every chunk and all tiles of `rows` output rows.
template <typename F>
void for_chunks(const Pass& pass, int64_t rows, const F& fn) {
  const int64_t tiles = row_tiles(rows), threads = pass.step.pool.size();
  const int64_t even = (tiles * pass.num_chunks + 4 * threads - 1) / (4 * threads);
  const int64_t size = std::clamp<int64_t>(even, 1, pass.longest > kFewTokens ? kTaskTiles : kTaskTilesFewTokens);
  const int64_t groups = (tiles + size - 1) / size;
  pass.step.pool.parallel_for(groups * pass.num_chunks, [&](int64_t id, int thread) {
    const int64_t begin = id % groups * size;
    fn(pass.scratch().chunks + 3 * (id / groups), begin, std::min(tiles, begin + size), thread);
  });
}

// Copies each entry's prepared activations to where its expert's lie together.
void gather(const Pass& pass) {
  const MoeScratch& s = pass.scratch();
  for (int kind = 0; kind < kNumInputKinds; ++kind) {
    const auto wants = [kind](const ExpertWeights& w) { return static_cast<int>(input_kind(w.first.format)) == kind; };
    if (!wants(pass.block.gate) && !wants(pass.block.up)) continue;
    const auto row = static_cast<int64_t>(input_bytes(static_cast<InputKind>(kind), 1, pass.block.gate.first.cols));
    pass.step.for_tokens(pass.entries(), row / 16, [&](int64_t entry, int) {
      const std::byte* from = pass.step.scratch.inputs[kind] + s.token[entry] * row;
      std::copy_n(from, row, s.inputs[kind] + entry * row);
    });
  }
}

const std::byte* input_of(const Pass& pass, const Weight& weight, int64_t entry) {
  const InputKind kind = input_kind(weight.format);
  const auto row = static_cast<int64_t>(input_bytes(kind, 1, weight.cols));
  return pass.scratch().inputs[static_cast<int>(kind)] + entry * row;
}

void activate(const Pass& pass, const float* gate, const float* up, int64_t width, float* out) {
  const MoeBlock& block = pass.block;
  if (block.activation == Activation::kClampedSwiglu) return pass.step.ops.swiglu(block.clamped, gate, up, width, out);
  pass.step.ops.gate(block.activation, gate, up, width, out);
}

void gate_and_up(const Pass& pass) {
  const MoeScratch& s = pass.scratch();
  const int64_t rows = pass.block.gate.first.rows;
  for_chunks(pass, rows, [&](const int32_t* chunk, int64_t tile_begin, int64_t tile_end, int thread) {
    const Weight gate = pass.block.gate.of(chunk[0]), up = pass.block.up.of(chunk[0]);
    const int64_t count = chunk[2] - chunk[1], first = tile_begin * kRowTile;
    const int64_t stride = (tile_end - tile_begin) * kRowTile;
    float* gate_result = pass.step.thread_floats(thread);
    float* up_result = gate_result + kResultFloats;
    linear(gate, input_of(pass, gate, chunk[1]), count, tile_begin, tile_end, gate_result - first, stride);
    linear(up, input_of(pass, up, chunk[1]), count, tile_begin, tile_end, up_result - first, stride);
    const int64_t width = std::min(rows, tile_end * kRowTile) - first;
    for (int64_t i = 0; i < count; ++i) {
      activate(pass, gate_result + i * stride, up_result + i * stride, width, s.gated + (chunk[1] + i) * rows + first);
    }
  });
}

void down(const Pass& pass) {
  const MoeScratch& s = pass.scratch();
  const Weight& shape = pass.block.down.first;
  const InputKind kind = input_kind(shape.format);
  std::byte* inputs = s.inputs[static_cast<int>(kind)];
  pass.step.for_tokens(pass.entries(), shape.cols, [&](int64_t entry, int) {
    prepare_input(kind, s.gated + entry * shape.cols, 0, entry, entry + 1, shape.cols, inputs);
  });
  for_chunks(pass, shape.rows, [&](const int32_t* chunk, int64_t tile_begin, int64_t tile_end, int) {
    const Weight weight = pass.block.down.of(chunk[0]);
    linear(weight, input_of(pass, weight, chunk[1]), chunk[2] - chunk[1], tile_begin, tile_end,
           s.y + chunk[1] * shape.rows, shape.rows);
  });
}

// The branch beside the experts, to scratch.dense and scratch.share; inputs of the experts' norm are prepared where it
// has none of its own.
void dense_branch(const Pass& pass) {
  const DenseBranch& dense = pass.block.dense;
  if (!dense.present()) return;
  const Step& step = pass.step;
  const MoeScratch& s = pass.scratch();
  if (dense.share.rows > 0) {
    const Weight* share[] = {&dense.share};
    for_products(step, share, 1, pass.count,
                 [&](const ProductTask& task, int) { run_product(step, dense.share, task, s.share, 1); });
  }
  if (dense.norm.weight != nullptr) {
    const Weight* weights[] = {&dense.gate, &dense.up};
    prepare_inputs(step, weights, 2, dense.norm, pass.x(), dense.gate.cols, pass.count);
  }
  gated_products(step, dense.gate, dense.up, dense.activation, pass.count);
  const Weight* down[] = {&dense.down};
  prepare_inputs(step, down, 1, {}, step.scratch.gated, dense.down.cols, pass.count);
  for_products(step, down, 1, pass.count,
               [&](const ProductTask& task, int) { run_product(step, dense.down, task, s.dense, dense.down.rows); });
}

// x = (x + post_norm(experts_post_norm(sum of w y) + share * post_norm(dense))) * out_scale
void combine(const Pass& pass) {
  const MoeScratch& s = pass.scratch();
  const MoeBlock& block = pass.block;
  const TokenKernels& ops = pass.step.ops;
  const int64_t hidden = block.router.cols;
  const int top_k = block.top_k;
  pass.step.for_tokens(pass.count, hidden * top_k, [&](int64_t t, int thread) {
    float* x = pass.x() + t * hidden;
    float* sum = block.plain() ? x : pass.step.thread_floats(thread);
    if (sum != x) std::fill_n(sum, hidden, 0.0f);
    for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
      ops.add_scaled(s.weights[i], s.y + s.entry[i] * hidden, hidden, sum);
    }
    if (sum == x) return;
    const auto norm = [&](const Norm& norm, float* values) {
      if (norm.weight != nullptr) ops.rms_norm(values, norm.weight, norm.eps, hidden, values);
    };
    norm(block.experts_post_norm, sum);
    if (block.dense.present()) {
      const float share = block.dense.share.rows > 0 ? 1.0f / (1.0f + std::exp(-s.share[t])) : 1.0f;
      norm(block.dense.post_norm, s.dense + t * hidden);
      ops.add_scaled(share, s.dense + t * hidden, hidden, sum);
    }
    norm(block.post_norm, sum);
    add_scaled_sum(pass.step, sum, block.out_scale, hidden, x);
  });
}

// Inputs of the router where it has a norm of its own; of all others else, where the branch has none, too.
void prepare(const Pass& pass, bool router) {
  const MoeBlock& block = pass.block;
  const bool own = block.router_norm.weight != nullptr, branch = block.dense.present();
  const Weight* weights[6];
  int count = 0;
  if (router || !own) weights[count++] = &block.router;
  if (!router || !own) {
    weights[count++] = &block.gate.first, weights[count++] = &block.up.first;
    if (branch && block.dense.norm.weight == nullptr) {
      weights[count++] = &block.dense.gate, weights[count++] = &block.dense.up;
    }
    if (branch && block.dense.share.rows > 0) weights[count++] = &block.dense.share;
  }
  prepare_inputs(pass.step, weights, count, router && own ? block.router_norm : block.norm, pass.x(), block.router.cols,
                 pass.count);
}

}  // namespace

void run_block(const Step& step, const MoeBlock& block) {
  const int64_t tokens = step.batch.num_tokens;
  for (int64_t begin = 0; begin < tokens; begin += kMoeTokens) {
    Pass pass{step, block, begin, std::min(kMoeTokens, tokens - begin)};
    prepare(pass, true);
    route(pass);
    group(pass);
    if (block.router_norm.weight != nullptr) prepare(pass, false);
    gather(pass);
    dense_branch(pass);  // its inputs replace the experts', which are gathered
    gate_and_up(pass);
    down(pass);
    combine(pass);
  }
}

}  // namespace tailrace::cpu
