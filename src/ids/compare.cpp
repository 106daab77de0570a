#include "ids/compare.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <future>

#include "base/check.h"
#include "ids/path_proof.h"
#include "ids/same_answer.h"
#include "ids/workload.h"

namespace tailrace {
namespace {

constexpr std::chrono::seconds kPatience(600);
constexpr int32_t kSmallChunk = 48;  // no multiple of a block on any device
constexpr int32_t kLargestReferenceChunk = 8192;
constexpr size_t kLoggedSteps = 1 << 15;

// A request that cannot be submitted or does not end leaves an answer that the comparison refuses.
Answer finish(EngineClient& client, const Expected<std::shared_ptr<const Request>>& request) {
  if (!request) return {.error = request.error().message()};
  client.wait(**request, -1, kPatience);
  return client.poll(**request);
}

std::vector<Answer> alone(EngineClient& client, const std::vector<Request>& requests) {
  std::vector<Answer> answers;
  for (const Request& request : requests) {
    client.flush_cache();
    answers.push_back(finish(client, client.submit(request)));
  }
  return answers;
}

std::vector<Answer> at_once(EngineClient& client, const std::vector<Request>& requests) {
  std::vector<Expected<std::shared_ptr<const Request>>> submitted;
  for (const Request& request : requests) submitted.push_back(client.submit(request));
  std::vector<Answer> answers;
  for (const auto& request : submitted) answers.push_back(finish(client, request));
  return answers;
}

// Half of the requests decode when the others arrive: these are submitted on the engine's own thread, with the last first token of
// those, so that how the machine schedules threads decides nothing.
std::vector<Answer> staggered(EngineClient& client, const std::vector<Request>& requests) {
  std::vector<Expected<std::shared_ptr<const Request>>> submitted(requests.size());
  std::atomic<size_t> without_token = (requests.size() + 1) / 2;
  std::promise<void> all_submitted;
  const auto on_first = [&] {
    if (--without_token > 0) return;
    for (size_t i = 1; i < requests.size(); i += 2) submitted[i] = client.submit(requests[i]);
    all_submitted.set_value();
  };
  for (size_t i = 0; i < requests.size(); i += 2) {
    submitted[i] = client.submit(requests[i], on_first);
    if (!submitted[i]) on_first();
  }
  CHECK_MSG(all_submitted.get_future().wait_for(kPatience) == std::future_status::ready, "the engine stands still");
  std::vector<Answer> answers;
  for (const auto& request : submitted) answers.push_back(finish(client, request));
  return answers;
}

using Way = std::vector<Answer> (*)(EngineClient&, const std::vector<Request>&);

struct Path {
  const char* name;
  Way way;
  // What must have happened for the path to be one: steps of a kind, and tokens from the prefix cache.
  PathProof proof;
  bool from_cache = false;
};

// Engine options, and the paths that run on them.
struct EngineCase {
  EngineSetup setup;
  std::vector<Path> paths;
};

EngineSetup reference_setup(const IdsOptions& options, const std::vector<Request>& requests) {
  EngineSetup setup = options.setup;
  if (options.cpu_reference) {
    setup.device_kind = "cpu";
    setup.limits = default_limits("cpu");
    setup.limits.context_length = options.setup.limits.context_length;
    setup.limits.max_total_tokens = options.setup.limits.max_total_tokens;
  }
  int32_t longest = 1;
  for (const Request& request : requests) longest = std::max(longest, static_cast<int32_t>(request.prompt_ids.size()));
  setup.limits.chunk_size = std::min(longest, kLargestReferenceChunk);
  setup.limits.prefix_cache = false;
  setup.engine.overlap = false;
  setup.backend_options.kv_splits = 1;
  return setup;
}

std::vector<EngineCase> engines(const EngineSetup& base) {
  EngineSetup uncached = base, small = base, no_overlap = base, alternating = base;
  uncached.limits.prefix_cache = false;
  small.limits.chunk_size = kSmallChunk;
  small.limits.prefix_cache = false;
  no_overlap.engine.overlap = false;
  no_overlap.limits.prefix_cache = false;
  alternating.mixed = MixedMode::kOff;
  alternating.limits.prefix_cache = false;
  EngineSetup cached = base;
  cached.limits.prefix_cache = true;
  return {{uncached, {{"batched", at_once, decoded_together}, {"mixed", staggered, decoded_beside_prompt}}},
          {small, {{"small chunks", staggered, decoded_beside_prompt}}},
          {no_overlap, {{"overlap off", staggered, decoded_beside_prompt}}},
          {alternating, {{"mixed off", staggered, decode_waited}}},
          {cached, {{"cached (first)", staggered, decoded_together}, {"cached (again)", staggered, decoded_together, true}}}};
}

// Runs, judges and prints one path; true when it was tried and gave the reference's answers.
bool compare_path(EngineClient& client, StepLog& log, const Path& path, const std::vector<Request>& requests,
                  const std::vector<Answer>& reference, const SameAnswerOptions& options) {
  log.clear();
  const uint64_t cached_before = client.status().cached_tokens;
  const Comparison result =
      same_answer(requests, reference, [&](const std::vector<Request>& r) { return path.way(client, r); }, options);
  client.wait_idle();
  const std::string verdict = result.verdict(options);
  const bool tried = path.proof(log.records()) && (!path.from_cache || client.status().cached_tokens > cached_before);
  std::printf("%-16s %s: %d tokens, %d forced (%.2f %%), largest logprob difference %.2e%s%s\n", path.name,
              !verdict.empty() ? "DIFFERENT" : tried ? "same" : "NOT TRIED", result.compared, result.forced,
              100 * result.forced_share(), result.max_logprob_error, verdict.empty() ? "" : "; ", verdict.c_str());
  std::fflush(stdout);
  return verdict.empty() && tried;
}

}  // namespace

Expected<bool> run_compare(const IdsOptions& options) {
  std::vector<Request> requests;
  std::vector<Answer> reference;
  {
    // The ids need the vocabulary, and the reference's chunk their lengths: described first, loaded then.
    auto report = inspect_model(options.setup);
    if (!report) return fail(report.error());
    auto made = make_requests(options, report->memory.step.vocab, true);
    if (!made) return fail(made.error());
    requests = std::move(*made);
    for (Request& request : requests) request.sampling.num_top_logprobs = 2;
    auto client = EngineClient::create(reference_setup(options, requests));
    if (!client) return fail(client.error());
    reference = alone(**client, requests);
  }
  int tokens = 0;
  for (const Answer& answer : reference) {
    if (!answer.finished || answer.finish == FinishReason::kError) {
      return fail(StatusCode::kInternal, "the reference run failed: " + answer.error);
    }
    tokens += static_cast<int>(answer.ids.size());
  }
  std::printf(
      "reference        %s%zu prompts alone, one chunk, no cache, no overlap, one split: %d tokens; tolerance %g\n",
      options.cpu_reference ? "on the CPU, " : "", requests.size(), tokens, options.tolerance);
  const SameAnswerOptions same{.tolerance = options.tolerance, .max_forced_share = options.max_forced};
  bool all_same = true;
  for (EngineCase& engine : engines(options.setup)) {
    StepLog log(kLoggedSteps);
    engine.setup.engine.log = &log;
    auto client = EngineClient::create(engine.setup);
    if (!client) return fail(client.error());
    for (const Path& path : engine.paths) all_same &= compare_path(**client, log, path, requests, reference, same);
  }
  return all_same;
}

}  // namespace tailrace
