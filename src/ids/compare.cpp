#include "ids/compare.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <future>
#include <optional>
#include <random>
#include <set>

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
constexpr int32_t kEdgeRest = 9, kEdgeTokens = 16;  // of a prompt behind what it shares with the one before, and of its answer
// Requests of which a pool of so many tokens admits two or more, with the 64 tokens that it keeps free for each, and which then
// grow beyond it.
constexpr int32_t kCrowd = 4, kCrowdTokens = 192, kCrowdPool = 320;

// Requests, and the answers that the reference gave.
struct Questions {
  std::vector<Request> requests;
  std::vector<Answer> reference;
};

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

// Each request after one that has all of its prompt but the last kEdgeRest tokens, and nothing else cached. A request that goes on
// from a forced token shares what it shared at first.
std::vector<Answer> after_prefix(EngineClient& client, const std::vector<Request>& requests, const std::vector<Request>& first) {
  std::vector<Answer> answers;
  for (size_t i = 0; i < requests.size(); ++i) {
    client.flush_cache();
    Request prefix = first[i];
    prefix.prompt_ids.resize(prefix.prompt_ids.size() - kEdgeRest);
    prefix.max_tokens = 1;
    finish(client, client.submit(prefix));
    client.wait_idle();
    answers.push_back(finish(client, client.submit(requests[i])));
  }
  return answers;
}

using Way = std::function<std::vector<Answer>(EngineClient&, const std::vector<Request>&)>;

struct Path {
  const char* name;
  const Questions* questions;
  Way way;
  // What must have happened for the path to be one: steps of a kind, tokens from the prefix cache, preemptions.
  PathProof proof = nullptr;
  uint64_t least_cached = 0, least_preemptions = 0;
};

// Engine options, and the paths that run on them.
struct EngineCase {
  EngineSetup setup;
  std::vector<Path> paths;
};

Request random_request(const IdsOptions& options, int64_t vocab, int32_t prompt_len, int32_t max_tokens) {
  std::mt19937_64 random(options.seed + 1000003u * static_cast<uint64_t>(prompt_len));
  Request request;
  for (int32_t i = 0; i < prompt_len; ++i) request.prompt_ids.push_back(static_cast<TokenId>(random() % vocab));
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

// Prefixes that end one before, at and one behind a block, two blocks (where recurrent states are kept), and a chunk and each window
// behind those, so that all but the first have cached blocks.
std::vector<Request> edge_requests(const IdsOptions& options, const MemoryPlan& memory) {
  std::set<int32_t> lengths;
  const auto around = [&](int32_t length) { lengths.insert({length - 1, length, length + 1}); };
  const int32_t two_blocks = 2 * memory.kv.block_size;
  around(memory.kv.block_size), around(two_blocks), around(two_blocks + kSmallChunk);
  for (const auto& group : memory.kv.groups) {
    if (group.window > 1) around(two_blocks + group.window);
  }
  std::vector<Request> requests;
  for (const int32_t length : lengths) {
    if (length + kEdgeRest + kEdgeTokens > memory.context_length) break;
    requests.push_back(random_request(options, memory.step.vocab, length + kEdgeRest, kEdgeTokens));
  }
  return requests;
}

// What of the prefixes the cache must give: their whole blocks, or, of states, those up to the last one kept.
uint64_t cached_of_edges(const std::vector<Request>& requests, const KvIndexConfig& kv) {
  uint64_t tokens = 0;
  for (const Request& request : requests) {
    const int32_t length = static_cast<int32_t>(request.prompt_ids.size()) - kEdgeRest, block = kv.block_size;
    const int32_t state = std::max(length / (2 * block) * (2 * block), (length - 1) / block * block);
    tokens += static_cast<uint64_t>(kv.states.recurrent ? state : length / block * block);
  }
  return tokens;
}

// Why nobody can be preempted, or "": rows grow out of a pool of kCrowdPool tokens alone, and of none whose layers all have windows.
std::string no_crowd(const MemoryPlan& memory) {
  if (std::all_of(memory.kv.groups.begin(), memory.kv.groups.end(), [](const KvGroupConfig& g) { return g.window > 0; })) return "no row grows for long: every layer has a window";
  const int32_t needed = memory.kv.block_size / 2 + kCrowd + kCrowdTokens;
  if (memory.context_length < needed) return "rows cannot grow to " + std::to_string(needed) + " tokens: --context-length is less";
  return "";
}

std::vector<Request> crowd_requests(const IdsOptions& options, const MemoryPlan& memory) {
  std::vector<Request> requests;
  if (!no_crowd(memory).empty()) return requests;
  for (int32_t i = 0; i < kCrowd; ++i) {
    requests.push_back(random_request(options, memory.step.vocab, memory.kv.block_size / 2 + i, kCrowdTokens));
  }
  return requests;
}

EngineSetup reference_setup(const IdsOptions& options, int32_t longest) {
  EngineSetup setup = options.setup;
  if (options.cpu_reference) {
    setup.device_kind = "cpu";
    setup.limits = default_limits("cpu");
    setup.limits.context_length = options.setup.limits.context_length;
    setup.limits.max_total_tokens = options.setup.limits.max_total_tokens;
  }
  setup.limits.chunk_size = std::min(longest, kLargestReferenceChunk);
  setup.limits.prefix_cache = false;
  setup.engine.overlap = false;
  setup.backend_options.kv_splits = 1;
  return setup;
}

std::vector<EngineCase> engines(const EngineSetup& base, const KvIndexConfig& kv, const Questions& given, const Questions& edges,
                                const Questions& crowd) {
  EngineSetup uncached = base;
  uncached.limits.prefix_cache = false;
  EngineSetup small = uncached, no_overlap = uncached, alternating = uncached, crowded = uncached;
  small.limits.chunk_size = kSmallChunk;
  no_overlap.engine.overlap = false;
  alternating.mixed = MixedMode::kOff;
  crowded.limits.max_total_tokens = kCrowdPool;
  EngineSetup cached = base;
  cached.limits.prefix_cache = true;
  EngineSetup cached_edges = cached;
  cached_edges.limits.chunk_size = kSmallChunk;
  cached_edges.limits.checkpoint_interval = 2 * kv.block_size;
  cached_edges.limits.checkpoint_min_tokens = 1;
  const Way after_own_prefix = [&edges](EngineClient& client, const std::vector<Request>& requests) {
    return after_prefix(client, requests, edges.requests);
  };
  return {{uncached, {{"batched", &given, at_once, decoded_together}, {"mixed", &given, staggered, decoded_beside_prompt}}},
          {small, {{"small chunks", &given, staggered, decoded_beside_prompt}}},
          {no_overlap, {{"overlap off", &given, staggered, decoded_beside_prompt}}},
          {alternating, {{"mixed off", &given, staggered, decode_waited}}},
          {cached,
           {{"cached (first)", &given, staggered, decoded_together},
            {.name = "cached (again)", .questions = &given, .way = staggered, .proof = decoded_together, .least_cached = 1}}},
          {cached_edges,
           {{.name = "cached (edges)", .questions = &edges, .way = after_own_prefix, .least_cached = cached_of_edges(edges.requests, kv)}}},
          {crowded, {{.name = "preempted", .questions = &crowd, .way = at_once, .proof = decoded_together, .least_preemptions = 1}}}};
}

// Runs, judges and prints one path; true when it was tried and gave the reference's answers.
bool compare_path(EngineClient& client, StepLog& log, const Path& path, const SameAnswerOptions& options) {
  log.clear();
  const EngineStatus& status = client.status();
  const uint64_t cached_before = status.cached_tokens, preempted_before = status.preemptions;
  // Counted of the first pass alone: what goes on from a forced token is asked for again, which would count twice.
  std::optional<bool> counted;
  const auto pass = [&](const std::vector<Request>& requests) {
    std::vector<Answer> answers = path.way(client, requests);
    if (!counted) {
      counted = status.cached_tokens - cached_before >= path.least_cached &&
                status.preemptions - preempted_before >= path.least_preemptions;
    }
    return answers;
  };
  const Comparison result = same_answer(path.questions->requests, path.questions->reference, pass, options);
  client.wait_idle();
  const std::string verdict = result.verdict(options);
  const bool tried = (!path.proof || path.proof(log.records())) && counted.value_or(false);
  const std::string outside = result.outside > 0 ? ", " + std::to_string(result.outside) + " beyond the margin" : "";
  std::printf("%-16s %s: %d tokens, %d forced (%.2f %%)%s, largest logprob difference %.2e%s%s\n", path.name,
              !verdict.empty() ? "DIFFERENT" : tried ? "same" : "NOT TRIED", result.compared, result.forced,
              100 * result.forced_share(), outside.c_str(), result.max_logprob_error, verdict.empty() ? "" : "; ", verdict.c_str());
  std::fflush(stdout);
  return verdict.empty() && tried;
}

}  // namespace

Expected<bool> run_compare(const IdsOptions& options) {
  Questions given, edges, crowd;
  KvIndexConfig kv;
  std::string without_crowd;
  int32_t longest = 1;
  {
    // The ids need the vocabulary, and the reference's chunk their lengths: described first, loaded then.
    auto report = inspect_model(options.setup);
    if (!report) return fail(report.error());
    auto made = make_requests(options, report->memory.step.vocab, true);
    if (!made) return fail(made.error());
    given.requests = std::move(*made);
    edges.requests = edge_requests(options, report->memory);
    crowd.requests = crowd_requests(options, report->memory);
    kv = report->memory.kv, without_crowd = no_crowd(report->memory);
    for (Questions* questions : {&given, &edges, &crowd}) {
      for (Request& request : questions->requests) {
        request.sampling.num_top_logprobs = 2;
        longest = std::max(longest, static_cast<int32_t>(request.prompt_ids.size()));
      }
    }
    auto client = EngineClient::create(reference_setup(options, longest));
    if (!client) return fail(client.error());
    for (Questions* questions : {&given, &edges, &crowd}) questions->reference = alone(**client, questions->requests);
  }
  int tokens = 0;
  for (const Questions* questions : {&given, &edges, &crowd}) {
    for (const Answer& answer : questions->reference) {
      if (!answer.finished || answer.finish == FinishReason::kError) {
        return fail(StatusCode::kInternal, "the reference run failed: " + answer.error);
      }
      tokens += static_cast<int>(answer.ids.size());
    }
  }
  std::printf(
      "reference        %s%zu prompts alone, one chunk, no cache, no overlap, one split: %d tokens; tolerance %g\n",
      options.cpu_reference ? "on the CPU, " : "", given.requests.size() + edges.requests.size() + crowd.requests.size(), tokens,
      options.tolerance);
  const SameAnswerOptions same{.tolerance = options.tolerance, .max_forced_share = options.max_forced, .max_outside_share = options.max_outside};
  bool all_same = true;
  for (EngineCase& engine : engines(options.setup, kv, given, edges, crowd)) {
    const Path& first = engine.paths.front();
    if (first.questions->requests.empty()) {
      std::printf("%-16s cannot be: %s\n", first.name, first.questions == &crowd ? without_crowd.c_str() : "the context is too short");
      continue;
    }
    StepLog log(kLoggedSteps);
    engine.setup.engine.log = &log;
    auto client = EngineClient::create(engine.setup);
    if (!client) return fail(client.error());
    for (const Path& path : engine.paths) all_same &= compare_path(**client, log, path, same);
  }
  return all_same;
}

}  // namespace tailrace
