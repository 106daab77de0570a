#include "ids/idle_table.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "ids/engine_client.h"
#include "ids/spread.h"
#include "ids/workload.h"

namespace tailrace {
namespace {

constexpr std::array<int32_t, 3> kBatches = {1, 8, 64};
// In the order of StagingMode.
constexpr std::array<const char*, 4> kModes = {"device", "packed", "pinned", "blocking"};
constexpr int32_t kOutput = 320;        // tokens of a row: as many steps of each batch
constexpr int32_t kMixedRows = 8;
constexpr int32_t kArrivals = 8;
constexpr size_t kLoggedSteps = 1 << 15;
constexpr double kDecodeMustUs = 4, kMixedMustUs = 10, kBlockingMust = 5;

struct ModeGaps {
  std::array<GapSummary, kBatches.size()> decode;
  GapSummary mixed;
  uint64_t host_blocks = 0;
  double step_us = 0;  // median decode step of one row
};

// Gaps between a step that `before` accepts and the next, which `after` accepts.
template <typename Before, typename After>
GapSummary gaps_between(const std::vector<StepRecord>& steps, const Before& before, const After& after) {
  Spread gaps;
  for (size_t i = 1; i < steps.size(); ++i) {
    if (!before(steps[i - 1]) || !after(steps[i])) continue;
    if (steps[i].gap.ns > 0 && steps[i].gap.cause == IdleCause::kNoWork) continue;
    gaps.add(static_cast<double>(steps[i].gap.ns) / 1e3);
  }
  return {.count = gaps.count(), .p50_us = gaps.at(0.5), .p99_us = gaps.at(0.99)};
}

Expected<std::vector<StepRecord>> run_requests(EngineClient& client, StepLog& log, const std::vector<Request>& requests,
                                               double arrivals_ms) {
  log.clear();
  auto result = run_workload(client, requests, 0, arrivals_ms);
  if (!result) return fail(result.error());
  if (!client.flush_cache()) return fail(StatusCode::kInternal, "the engine did not become idle");
  for (const TimedAnswer& answer : result->answers) {
    if (answer.answer.finish == FinishReason::kError) return fail(StatusCode::kInternal, answer.answer.error);
  }
  return log.records();
}

// `rows` requests of short prompts, then `arrivals` of long ones.
Expected<std::vector<Request>> requests_of(IdsOptions options, int64_t vocab, int32_t rows, int32_t arrivals,
                                           int32_t long_prompt) {
  options.prompt_file.clear();
  options.prompts = rows;
  options.output_len = kOutput;
  auto requests = make_requests(options, vocab, false);
  if (!requests || arrivals == 0) return requests;
  options.prompts = arrivals;
  options.prompt_len = long_prompt;
  options.output_len = 2;
  options.seed += 1;
  auto late = make_requests(options, vocab, false);
  if (!late) return late;
  for (Request& request : *late) requests->push_back(std::move(request));
  return requests;
}

Expected<ModeGaps> measure(const IdsOptions& options, StagingMode mode) {
  StepLog log(kLoggedSteps);
  EngineSetup setup = options.setup;
  setup.staging = mode;
  setup.engine.log = &log;
  auto client = EngineClient::create(setup);
  if (!client) return fail(client.error());
  const MemoryPlan& memory = (*client)->host().report().memory;
  ModeGaps gaps;
  for (size_t b = 0; b < kBatches.size(); ++b) {
    if (kBatches[b] > memory.step.max_rows) continue;
    auto requests = requests_of(options, memory.step.vocab, kBatches[b], 0, 0);
    if (!requests) return fail(requests.error());
    auto steps = run_requests(**client, log, *requests, 0);
    if (!steps) return fail(steps.error());
    gaps.decode[b] = decode_gaps(*steps, kBatches[b]);
    if (b > 0) continue;
    Spread times;
    for (const StepRecord& s : *steps) times.add(static_cast<double>(s.done_ns - s.begun_ns) / 1e3);
    gaps.step_us = times.at(0.5);
  }
  const int32_t long_prompt = std::min(4 * setup.limits.chunk_size, memory.context_length - kOutput);
  auto requests = requests_of(options, memory.step.vocab, std::min(kMixedRows, memory.step.max_rows - 1), kArrivals,
                              long_prompt);
  if (!requests) return fail(requests.error());
  auto steps = run_requests(**client, log, *requests, 1);
  if (!steps) return fail(steps.error());
  gaps.mixed = mixed_gaps(*steps);
  (*client)->stop(false);
  gaps.host_blocks += (*client)->status().host_block.total();
  return gaps;
}

void print_cell(const GapSummary& gaps) {
  char text[32];
  std::snprintf(text, sizeof text, gaps.count > 0 ? "%.1f / %.1f" : "-", gaps.p50_us, gaps.p99_us);
  std::printf(" %s |", text);
}

void print_row(const char* name, const ModeGaps& gaps) {
  std::printf("| %s |", name);
  for (const GapSummary& decode : gaps.decode) print_cell(decode);
  print_cell(gaps.mixed);
  std::printf(" %zu | %llu |\n", gaps.mixed.count, static_cast<unsigned long long>(gaps.host_blocks));
  std::fflush(stdout);
}

// Prints each must that is missed; true when none is.
bool judge(const std::array<ModeGaps, kModes.size()>& modes) {
  const ModeGaps &device = modes[0], &blocking = modes[3];
  bool met = true;
  const auto must = [&](bool ok, const char* what, int32_t rows, double got, double bound) {
    if (!ok) std::printf("MISSED: %s, batch %d: %.1f us, must %.1f us\n", what, rows, got, bound);
    met &= ok;
  };
  for (size_t b = 0; b < kBatches.size(); ++b) {
    const double gap = device.decode[b].p50_us, blocked = blocking.decode[b].p50_us;
    const bool measured = device.decode[b].count > 0 && blocking.decode[b].count > 0;
    must(measured && gap <= kDecodeMustUs, "gap before a decode step", kBatches[b], gap, kDecodeMustUs);
    must(blocked >= kBlockingMust * gap, "blocking's gap", kBatches[b], blocked, kBlockingMust * gap);
  }
  must(device.mixed.count > 0 && device.mixed.p50_us <= kMixedMustUs, "gap before a mixed step", kMixedRows,
       device.mixed.p50_us, kMixedMustUs);
  return met;
}

}  // namespace

GapSummary decode_gaps(const std::vector<StepRecord>& steps, int32_t rows) {
  const auto decodes = [&](const StepRecord& s) { return s.num_rows == rows && s.num_decode_rows == rows; };
  return gaps_between(steps, decodes, decodes);
}

GapSummary mixed_gaps(const std::vector<StepRecord>& steps) {
  return gaps_between(
      steps, [](const StepRecord& s) { return s.num_decode_rows > 0; },
      [](const StepRecord& s) { return s.num_decode_rows > 0 && s.num_decode_rows < s.num_rows; });
}

Expected<bool> run_idle_table(const IdsOptions& options) {
  std::array<ModeGaps, kModes.size()> modes;
  for (size_t m = 0; m < kModes.size(); ++m) {
    auto gaps = measure(options, static_cast<StagingMode>(m));
    if (!gaps) return fail(gaps.error());
    modes[m] = *gaps;
    if (m == 0) {
      std::printf("device idle between two steps, us, p50 / p99; a decode step of one row takes %.0f us\n\n",
                  gaps->step_us);
      std::printf("| staging | batch 1 | batch 8 | batch 64 | mixed | mixed steps | host blocks |\n");
      std::printf("|---|---|---|---|---|---|---|\n");
    }
    print_row(kModes[m], *gaps);
  }
  if (modes[0].host_blocks > 0 || modes[3].host_blocks == 0) {
    std::printf("MISSED: host blocks are counted where there are none, or not where there are\n");
    return false;
  }
  return options.setup.device_kind != "cuda" || judge(modes);
}

}  // namespace tailrace
