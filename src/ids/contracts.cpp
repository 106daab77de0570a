#include "ids/contracts.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "device/cuda_plugin.h"
#include "ids/engine_client.h"
#include "ids/workload.h"
#include "kernels/cuda_abi.h"

namespace tailrace {
namespace {

constexpr int kWarmTokens = 32;     // of every row, before anything is counted
constexpr int kStepsPerSlab = 32;   // of a phase without arrivals
constexpr int kArrivals = 24;
constexpr int32_t kArrivalOutput = 32;
constexpr std::chrono::seconds kPatience(120);
constexpr int64_t kStuckNs = 60'000'000'000;

uint64_t count_of(const PhaseCounts& counts, CallKind kind) {
  uint64_t total = 0;
  for (const DriverCall& call : counts.calls) total += classify_driver_call(call.name) == kind ? call.count : 0;
  return total;
}

std::string named(const PhaseCounts& counts, CallKind kind) {
  std::string text;
  for (const DriverCall& call : counts.calls) {
    if (classify_driver_call(call.name) == kind) {
      text += (text.empty() ? "" : ", ") + std::to_string(call.count) + " " + call.name;
    }
  }
  return text;
}

// The engine's counters now; a phase is the difference of two.
PhaseCounts snapshot(const EngineStatus& status) {
  return {.steps = status.launches,
          .mixed_steps = status.mixed_steps,
          .slabs = status.slab_copies,
          .host_blocks = status.host_block.total(),
          .allocations = status.device_alloc_after_ready,
          .claimed_bytes = status.device_bytes + status.pinned_bytes};
}

// Counts what happens between its making and its end.
class Phase {
 public:
  Phase(EngineClient& client, CallWatch* watch) : client_(client), watch_(watch), before_(snapshot(client.status())) {
    if (watch_ != nullptr) watch_->begin(client.host().engine_thread());
  }
  uint64_t steps() const { return client_.status().launches - before_.steps; }
  PhaseCounts end() {
    PhaseCounts counts = snapshot(client_.status());
    if (watch_ != nullptr) counts.calls = watch_->end();
    counts.watched = watch_ != nullptr;
    counts.steps -= before_.steps;
    counts.mixed_steps -= before_.mixed_steps;
    counts.slabs -= before_.slabs;
    counts.host_blocks -= before_.host_blocks;
    counts.allocations -= before_.allocations;
    counts.claimed_bytes -= before_.claimed_bytes;
    return counts;
  }

 private:
  EngineClient& client_;
  CallWatch* watch_;
  PhaseCounts before_;
};

using Submitted = std::vector<std::shared_ptr<const Request>>;

// Submits and waits until every row decodes.
Expected<Submitted> start_rows(EngineClient& client, std::vector<Request> requests) {
  Submitted rows;
  for (Request& request : requests) {
    auto row = client.submit(std::move(request));
    if (!row) return fail(row.error());
    rows.push_back(*row);
  }
  for (const auto& row : rows) {
    if (!client.wait(*row, kWarmTokens, kPatience) || client.poll(*row).finished) {
      return fail(StatusCode::kInternal, "the rows did not come to decode: " + client.poll(*row).error);
    }
  }
  return rows;
}

Status end_rows(EngineClient& client, const Submitted& rows) {
  for (const auto& row : rows) client.cancel(*row);
  return client.wait_idle() ? Status() : Status(StatusCode::kInternal, "the engine did not become idle");
}

Expected<PhaseCounts> decode_phase(EngineClient& client, CallWatch* watch, const std::vector<Request>& requests,
                                   int32_t steps) {
  auto rows = start_rows(client, requests);
  if (!rows) return fail(rows.error());
  Phase phase(client, watch);
  int64_t moved_ns = now_ns();
  uint64_t seen = 0;
  while (phase.steps() < static_cast<uint64_t>(steps)) {
    if (const uint64_t steps = phase.steps(); steps != seen) seen = steps, moved_ns = now_ns();
    if (now_ns() - moved_ns > kStuckNs) return fail(StatusCode::kInternal, "no step is launched any more");
    // Looked at from here, so that the engine thread wakes nobody.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if ((*rows)[0]->stream->times.finished_ns != 0) {
      return fail(StatusCode::kInternal, "a row ended before the phase did");
    }
  }
  const PhaseCounts counts = phase.end();
  if (Status status = end_rows(client, *rows); !status.ok()) return fail(status);
  return counts;
}

Expected<PhaseCounts> arrivals_phase(EngineClient& client, CallWatch* watch, const std::vector<Request>& requests,
                                     const std::vector<Request>& arrivals) {
  auto rows = start_rows(client, requests);
  if (!rows) return fail(rows.error());
  Phase phase(client, watch);
  Submitted arrived;
  for (const Request& request : arrivals) {
    auto submitted = client.submit(request);
    if (!submitted) return fail(submitted.error());
    arrived.push_back(*submitted);
    if (arrived.size() % 3 == 0 && !client.wait(*arrived.back(), 1, kPatience)) break;
  }
  for (const auto& request : arrived) {
    if (client.wait(*request, -1, kPatience)) continue;
    return fail(StatusCode::kInternal, "a request that arrived does not end");
  }
  const PhaseCounts counts = phase.end();
  if (Status status = end_rows(client, *rows); !status.ok()) return fail(status);
  return counts;
}

bool report(const char* name, const PhaseCounts& counts, const PhaseRules& rules) {
  std::printf("%-16s %llu steps (%llu mixed), %llu slabs, %llu host blocks, %llu allocations", name,
              static_cast<unsigned long long>(counts.steps), static_cast<unsigned long long>(counts.mixed_steps),
              static_cast<unsigned long long>(counts.slabs), static_cast<unsigned long long>(counts.host_blocks),
              static_cast<unsigned long long>(counts.allocations));
  if (counts.watched) {
    std::printf("; driver calls: %llu wait, %llu claim\n  also called: %s",
                static_cast<unsigned long long>(count_of(counts, CallKind::kWaits)),
                static_cast<unsigned long long>(count_of(counts, CallKind::kClaims)),
                named(counts, CallKind::kQueues).c_str());
  }
  const std::string breach = contract_breach(counts, rules);
  std::printf("\n  %s\n", breach.empty() ? "contracts kept" : ("BROKEN: " + breach).c_str());
  std::fflush(stdout);
  return breach.empty();
}

// The requests of a phase: `rows` that outlast it, or ones that arrive.
Expected<std::vector<Request>> phase_requests(IdsOptions options, int64_t vocab, int32_t prompts, int32_t output_len,
                                              uint64_t seed) {
  options.prompt_file.clear();
  options.prompts = prompts;
  options.output_len = output_len;
  options.seed = seed;
  return make_requests(options, vocab, true);
}

}  // namespace

std::string contract_breach(const PhaseCounts& counts, const PhaseRules& rules) {
  std::string all;
  const auto breach = [&](bool broken, const std::string& what) {
    if (broken) all += (all.empty() ? "" : "; ") + what;
  };
  breach(counts.host_blocks > 0, std::to_string(counts.host_blocks) + " host blocks");
  breach(counts.allocations > 0, std::to_string(counts.allocations) + " allocations after ready");
  breach(counts.claimed_bytes != 0, std::to_string(counts.claimed_bytes) + " bytes more are claimed");
  breach(counts.watched && counts.calls.empty(), "the watch saw no driver call at all: it is blind");
  const std::string waits = named(counts, CallKind::kWaits), claims = named(counts, CallKind::kClaims);
  breach(!waits.empty(), "driver calls that wait: " + waits);
  breach(!claims.empty(), "driver calls that claim: " + claims);
  if (rules.arrivals) {
    breach(counts.mixed_steps == 0, "no mixed step: the phase shows nothing");
    return all;
  }
  breach(counts.mixed_steps > 0, "something arrived in a phase without arrivals");
  const uint64_t most = counts.steps / kStepsPerSlab;
  breach(counts.slabs > most, std::to_string(counts.slabs) + " slabs, more than " + std::to_string(most));
  return all;
}

Expected<bool> run_contracts(const IdsOptions& options) {
  std::unique_ptr<CallWatch> watch;
  if (options.setup.device_kind == "cuda") {
    auto plugin = load_cuda_plugin(cuda_plugin_abi());
    if (!plugin) return fail(plugin.error());
    auto made = (*plugin)->watch_calls();
    if (!made) return fail(made.error());
    watch = std::move(*made);
  }
  auto client = EngineClient::create(options.setup);
  if (!client) return fail(client.error());
  const MemoryPlan& memory = (*client)->host().report().memory;
  // What is launched while the main thread sleeps comes on top.
  const int32_t lasting = options.contract_steps + kWarmTokens + options.contract_steps / 4 + 256;
  if (options.prompt_len + lasting > memory.context_length) {
    return fail(StatusCode::kInvalidArgument, "--contracts: a context of " + std::to_string(memory.context_length) +
                                                  " cannot hold " + std::to_string(options.contract_steps) +
                                                  " steps; --contract-steps makes them fewer");
  }
  const int64_t vocab = memory.step.vocab;
  auto rows = phase_requests(options, vocab, options.prompts, lasting, options.seed);
  auto arrivals = phase_requests(options, vocab, kArrivals, kArrivalOutput, options.seed + 1);
  if (!rows || !arrivals) return fail(rows ? arrivals.error() : rows.error());
  std::printf("contracts         %s, %d rows; driver calls %s\n", (*client)->host().device().description().c_str(),
              options.prompts, watch ? "of the engine thread are watched" : "are none: no driver on this device");
  auto decode = decode_phase(**client, watch.get(), *rows, options.contract_steps);
  if (!decode) return fail(decode.error());
  bool kept = report("decode only", *decode, {});
  auto mixed = arrivals_phase(**client, watch.get(), *rows, *arrivals);
  if (!mixed) return fail(mixed.error());
  kept &= report("with arrivals", *mixed, {.arrivals = true});
  return kept;
}

}  // namespace tailrace
