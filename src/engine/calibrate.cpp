#include "engine/calibrate.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/limits.h"

namespace tailrace {
namespace {

class Bench {
 public:
  Bench(ModelRunner& runner, int64_t vocab) : runner_(runner), vocab_(vocab) {
    const MemoryPlan& plan = runner.plan();
    int32_t blocks = plan.kv.groups[0].num_blocks;
    for (const KvGroupConfig& group : plan.kv.groups) blocks = std::min(blocks, group.num_blocks);
    blocks_ = blocks - 1;
  }

  // Tokens that one of `rows` rows may hold in this probe: distinct blocks for every row, in every group.
  int32_t room(int32_t rows) const {
    const MemoryPlan& plan = runner_.plan();
    return std::min(blocks_ / rows * plan.kv.block_size, plan.context_length - 1);
  }

  // Median time (us) of a step of `rows` rows that each compute q_len tokens behind `computed` ones.
  double time_us(int32_t rows, int32_t q_len, int32_t computed, bool decode) {
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      const LaunchedStep step = runner_.launch(make_plan(rows, q_len, computed, decode, i == 0));
      step.done->wait("step_result");
      times.push_back(static_cast<double>(step.done->device_ns() - step.begun->device_ns()) / 1000);
      if (i >= 2 && now_ns() - begin_ns_ > 2'000'000'000) break;  // a slow machine: three probes a shape are enough
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }

 private:
  StepPlan make_plan(int32_t rows, int32_t q_len, int32_t computed, bool decode, bool fresh) {
    const MemoryPlan& plan = runner_.plan();
    const int32_t block_size = plan.kv.block_size;
    const int32_t per_row = (computed + q_len + block_size - 1) / block_size;
    StepPlan step{.step = ++step_};
    step.num_decode_rows = decode ? rows : 0;
    step.num_tokens = rows * q_len;
    for (int32_t r = 0; r < rows; ++r) {
      step.rows.push_back({.slot = r, .computed_len = computed, .q_len = q_len, .samples = true,
                           .state_from = fresh ? kZeroState : 0});  // then there are numbers to go on from
      step.starts.push_back({r, request_});
      for (size_t g = 0; g < plan.kv.groups.size(); ++g) {
        BlockPatch patch{.group = static_cast<int32_t>(g), .slot = r, .first_index = 0};
        for (int32_t b = 0; b < per_row; ++b) patch.blocks.push_back(1 + r * per_row + b);
        step.block_patches.push_back(std::move(patch));
      }
      LogPatch log{.slot = r, .first = 0};
      for (int32_t t = 0; t < computed + q_len; ++t) {
        random_ = random_ * 6364136223846793005u + 1442695040888963407u;
        log.ids.push_back(static_cast<TokenId>((random_ >> 33) % vocab_));
      }
      step.log_patches.push_back(std::move(log));
    }
    return step;
  }

  ModelRunner& runner_;
  int64_t vocab_;
  int32_t blocks_ = 0;
  uint64_t step_ = 0;
  uint64_t random_ = 1;
  int64_t begin_ns_ = now_ns();
  std::shared_ptr<const Request> request_ = [] {
    auto request = std::make_shared<Request>();
    request->sampling.temperature = 0;
    return request;
  }();
};

}  // namespace

CostModel measure_cost_model(ModelRunner& runner, int64_t vocab) {
  Bench bench(runner, vocab);
  const MemoryPlan& plan = runner.plan();
  // Every probe fits the pools, the rows and the slab's log entries.
  const int32_t rows = std::min<int32_t>({8, plan.step.max_rows, bench.room(1) / 64 + 1});
  const int32_t short_kv = std::max(1, std::min(32, bench.room(rows) - 1));
  const int32_t long_kv = std::max(short_kv, std::min(1024, bench.room(1) - 1));
  const auto fit = [&](int32_t tokens) {
    return std::max(1, std::min({plan.max_step_tokens - plan.step.max_rows, tokens, bench.room(1)}));
  };
  CostModel cost;
  const double one = bench.time_us(1, 1, short_kv, true);
  const double many = rows > 1 ? bench.time_us(rows, 1, short_kv, true) : one;
  const double deep = bench.time_us(1, 1, long_kv, true);
  // A chunk long enough to show what a token costs: on a GPU 128 only show what the weights cost.
  constexpr double kLongUs = 20000;
  int32_t chunk = fit(128);
  double extend = bench.time_us(1, chunk, 0, false);
  if (extend < kLongUs && fit(1024) > chunk) {
    chunk = fit(1024);
    extend = bench.time_us(1, chunk, 0, false);
  }
  const int32_t over = std::max(0, std::min(1024, bench.room(1) - chunk));
  const int32_t few = std::max(1, std::min(4, chunk / 4));
  const bool has_prefix = over >= 128;
  const double few_fresh = bench.time_us(1, few, 0, false);
  const double few_deep = has_prefix ? bench.time_us(1, few, over, false) : few_fresh;
  const double extend_deep = has_prefix ? bench.time_us(1, chunk, over, false) : extend;

  cost.decode_row_us = rows > 1 ? std::max(0.1, (many - one) / (rows - 1)) : one / 4;
  cost.decode_kv_us = long_kv > short_kv ? std::max(0.0, (deep - one) / (long_kv - short_kv)) : 0;
  cost.base_us = std::max(1.0, one - cost.decode_row_us - cost.decode_kv_us * short_kv);
  // (few, 0) and (chunk, 0) give base and token; (few, over) and (chunk, over) give kv and pair; pairs within a chunk are left aside.
  cost.extend_token_us = chunk > few ? std::max(0.1, (extend - few_fresh) / (chunk - few)) : std::max(0.1, extend / chunk);
  cost.extend_base_us = std::max(0.0, few_fresh - cost.base_us - cost.extend_token_us * few);
  if (has_prefix && chunk > few) {
    const double whole = std::max(0.0, extend_deep - extend), part = std::max(0.0, few_deep - few_fresh);
    cost.extend_pair_us = std::max(0.0, whole - part) / (static_cast<double>(chunk - few) * over);
    cost.extend_kv_us = std::max(0.0, part / over - cost.extend_pair_us * few);
  }
  return cost;
}

}  // namespace tailrace
