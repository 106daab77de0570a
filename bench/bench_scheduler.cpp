// Host cost of the scheduler per step in steady decode with overlap: plan_step, on_launched,
// on_result with take_updates. Bound: plan_step below 20 us for 64 rows and 80 us for 256, so that
// it hides behind any forward.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "scheduler/scheduler.h"

namespace tailrace {
namespace {

struct Times {
  std::vector<int64_t> plan, launch, result;
};

double percentile_us(std::vector<int64_t>& values, double p) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(p * (values.size() - 1))] / 1000.0;
}

void bench(int32_t rows, bool window) {
  SchedulerConfig config;
  config.kv.block_size = 16;
  const int32_t context = 4096;
  config.kv.groups = {{0, rows * context / 16 + 1}};
  if (window) config.kv.groups.push_back({1024, rows * 120 + 1});
  config.max_rows = rows;
  config.context_length = context;
  config.max_log_patch_tokens = context + config.max_step_tokens;
  config.cost.extend_token_us = 0.5;  // prefill must end long before the first answer does
  config.cost.extend_pair_us = 0;
  Scheduler scheduler(config);
  for (int32_t i = 0; i < rows; ++i) {
    auto request = std::make_shared<Request>();
    request->id = next_request_id();
    for (int32_t t = 0; t < 1000 + i % 16; ++t) request->prompt_ids.push_back(i * 7 + t);
    request->max_tokens = context - 1100;
    request->stop_token_ids = {1, 2, 3};
    if (!scheduler.admit(request).ok()) return;
  }
  Times times;
  uint64_t pending = 0, patch_steps = 0;
  std::vector<TokenId> ids(rows, 77), pending_ids;
  int32_t measured = 0;
  while (measured < 2500) {
    const int64_t t0 = now_ns();
    const StepPlan plan = scheduler.plan_step();
    const int64_t t1 = now_ns();
    if (!plan.empty()) scheduler.on_launched(plan);
    const int64_t t2 = now_ns();
    if (pending != 0) scheduler.on_result({pending, pending_ids});
    const auto updates = scheduler.take_updates();
    const int64_t t3 = now_ns();
    pending = plan.empty() ? 0 : plan.step;
    pending_ids.assign(plan.rows.size(), 77);
    if (plan.num_decode_rows < rows) continue;
    ++measured;
    patch_steps += !plan.block_patches.empty();
    times.plan.push_back(t1 - t0);
    times.launch.push_back(t2 - t1);
    times.result.push_back(t3 - t2);
  }
  std::printf(
      "%3d rows%s: plan_step p50 %.1f us, p99 %.1f us; on_launched p50 %.2f us; on_result p50 %.1f "
      "us; "
      "block patches in %.2f %% of steps\n",
      rows, window ? " + window group" : "", percentile_us(times.plan, 0.5),
      percentile_us(times.plan, 0.99), percentile_us(times.launch, 0.5),
      percentile_us(times.result, 0.5), 100.0 * patch_steps / measured);
}

}  // namespace
}  // namespace tailrace

int main() {
  for (const int32_t rows : {1, 64, 256}) {
    tailrace::bench(rows, false);
    tailrace::bench(rows, true);
  }
}
