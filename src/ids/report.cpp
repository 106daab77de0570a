#include "ids/report.h"

#include <cstdio>
#include <fstream>
#include <vector>

#include "ids/spread.h"

namespace tailrace {
namespace {

void print_requests(const WorkloadResult& result) {
  Spread ttft_ms, decode_speed;
  size_t finished = 0, output = 0;
  int64_t prompt = 0;
  for (const TimedAnswer& a : result.answers) {
    finished += a.answer.finished && a.answer.finish != FinishReason::kError ? 1 : 0;
    output += a.answer.ids.size();
    prompt += a.prompt_len;
    if (a.first_ns == 0) continue;
    ttft_ms.add(static_cast<double>(a.first_ns - a.submitted_ns) / 1e6);
    if (a.answer.ids.size() > 1) {
      decode_speed.add(static_cast<double>(a.answer.ids.size() - 1) /
                       (static_cast<double>(a.finished_ns - a.first_ns) / 1e9));
    }
  }
  const double seconds = static_cast<double>(result.ended_ns - result.begun_ns) / 1e9;
  std::printf(
      "requests          %zu of %zu finished, %lld prompt tokens, %zu output tokens in %.3f s (%.1f output tok/s)\n",
      finished, result.answers.size(), static_cast<long long>(prompt), output, seconds,
      static_cast<double>(output) / seconds);
  std::printf("TTFT ms           %s\n", ttft_ms.text().c_str());
  if (!decode_speed.empty()) {
    std::printf("decode tok/s      mean %.2f, slowest %.2f, fastest %.2f\n",
                decode_speed.sum() / static_cast<double>(decode_speed.count()), decode_speed.at(0), decode_speed.at(1));
  }
}

void print_steps(const std::vector<StepRecord>& steps, uint64_t total) {
  Spread decode_us, mixed_us, extend_us, plan_us, launch_us, process_us, idle_us;
  double idle_by_cause_us[kNumIdleCauses] = {};
  uint64_t slabs = 0;
  for (const StepRecord& s : steps) {
    const double us = static_cast<double>(s.done_ns - s.begun_ns) / 1e3;
    const bool decode = s.num_decode_rows > 0, extend = s.num_rows > s.num_decode_rows;
    (decode && extend ? mixed_us : extend ? extend_us : decode_us).add(us);
    plan_us.add(static_cast<double>(s.launch_ns - s.plan_ns) / 1e3);
    launch_us.add(static_cast<double>(s.launched_ns - s.launch_ns) / 1e3);
    process_us.add(static_cast<double>(s.processed_ns - s.result_ns) / 1e3);
    slabs += s.has_slab ? 1 : 0;
    idle_by_cause_us[static_cast<int>(s.gap.cause)] += static_cast<double>(s.gap.ns) / 1e3;
    if (s.gap.cause != IdleCause::kNoWork || s.gap.ns == 0) idle_us.add(static_cast<double>(s.gap.ns) / 1e3);
  }
  std::printf("steps             %llu: %zu decode, %zu extend, %zu mixed; %llu sent a slab%s\n",
              static_cast<unsigned long long>(total), decode_us.count(), extend_us.count(), mixed_us.count(),
              static_cast<unsigned long long>(slabs), total > steps.size() ? " (of the last kept)" : "");
  if (!decode_us.empty()) std::printf("decode step us    %s\n", decode_us.text().c_str());
  if (!mixed_us.empty()) std::printf("mixed step us     %s\n", mixed_us.text().c_str());
  if (!extend_us.empty()) std::printf("extend step us    %s\n", extend_us.text().c_str());
  std::printf("host us           plan %s | launch %s | process %s\n", plan_us.text().c_str(), launch_us.text().c_str(),
              process_us.text().c_str());
  std::printf("device idle us    %s between %zu steps with work; sum", idle_us.text().c_str(), idle_us.count());
  for (int cause = 0; cause < kNumIdleCauses; ++cause) {
    std::printf(" %s %.0f", idle_cause_name(static_cast<IdleCause>(cause)), idle_by_cause_us[cause]);
  }
  std::printf("\n");
}

}  // namespace

void print_stats(const WorkloadResult& result, const StepLog& log, const EngineStatus& status) {
  print_requests(result);
  print_steps(log.records(), log.total());
  std::printf(
      "since ready       %llu host blocks, %llu allocations, %llu mixed steps over the bound, %llu preemptions, %llu "
      "rows spared after a stop id\n",
      static_cast<unsigned long long>(status.host_block.total()),
      static_cast<unsigned long long>(status.device_alloc_after_ready.load()),
      static_cast<unsigned long long>(status.mixed_over_budget.load()),
      static_cast<unsigned long long>(status.preemptions.load()),
      static_cast<unsigned long long>(status.spared_rows.load()));
}

Status write_trace(const std::string& path, const StepLog& log) {
  std::ofstream out(path);
  out << trace_json(log.records());
  out.flush();
  return out ? Status() : Status(StatusCode::kInvalidArgument, "--trace " + path + ": cannot be written");
}

}  // namespace tailrace
