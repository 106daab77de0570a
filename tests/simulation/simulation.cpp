#include "simulation/simulation.h"

#include <sstream>
#include <vector>

#include "simulation/random.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

std::string describe(const SchedulerConfig& config) {
  std::ostringstream out;
  out << "block " << config.kv.block_size << ", groups";
  for (const KvGroupConfig& group : config.kv.groups)
    out << " (window " << group.window << ", " << group.num_blocks << ")";
  out << ", cache " << config.kv.prefix_cache << ", rows " << config.max_rows << ", context "
      << config.context_length << ", step " << config.max_step_tokens << ", chunk "
      << config.chunk_size << ", ahead " << config.blocks_ahead_tokens << ", mixed "
      << static_cast<int>(config.mixed);
  const StateIndexConfig& states = config.kv.states;
  if (states.recurrent)
    out << ", checkpoints " << states.num_checkpoints << " every " << states.checkpoint_interval << ", at least "
        << states.checkpoint_min_tokens << " apart";
  return out.str();
}

// Requests of one run: fresh prompts, shared prefixes, repeats, and next turns of ended
// conversations.
class Workload {
 public:
  // `constrained`: half of the requests are.
  Workload(Random& random, const SchedulerConfig& config, bool constrained)
      : random_(random), config_(config), constrained_(constrained) {
    for (int i = 0; i < 3; ++i)
      prefixes_.push_back(random_tokens(random_.between(1, config.context_length / 2)));
  }

  std::shared_ptr<Request> next(const SimEngine& engine) {
    auto request = std::make_shared<Request>();
    request->id = next_request_id();
    request->prompt_ids = prompt(engine, *request);
    const int32_t context_left =
        config_.context_length - static_cast<int32_t>(request->prompt_ids.size());
    request->max_tokens = random_.one_in(5) ? 1 : random_.between(1, context_left);
    request->min_tokens = random_.one_in(4) ? random_.between(0, request->max_tokens) : 0;
    if (!random_.one_in(4)) request->stop_token_ids = {3, 17};
    if (constrained_ && random_.one_in(2)) request->constraint = fake_constraint();
    return request;
  }

 private:
  std::vector<TokenId> random_tokens(int32_t count) {
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back(random_.between(0, 2));
    return tokens;
  }

  std::vector<TokenId> prompt(const SimEngine& engine, Request& request) {
    const auto& answers = engine.answers();
    if (!answers.empty() && random_.one_in(2)) {
      auto it = answers.begin();
      std::advance(it, random_.between(0, static_cast<int32_t>(answers.size()) - 1));
      request.cache_salt = it->second.request->cache_salt;
      std::vector<TokenId> tokens = it->second.request->prompt_ids;
      if (random_.one_in(2)) return tokens;
      tokens.insert(tokens.end(), it->second.tokens.begin(), it->second.tokens.end());
      return with_tail(std::move(tokens));
    }
    if (random_.one_in(4)) request.cache_salt = "a";
    if (random_.one_in(3)) return with_tail({});
    return with_tail(prefixes_[random_.between(0, 2)]);
  }

  std::vector<TokenId> with_tail(std::vector<TokenId> tokens) {
    const std::vector<TokenId> tail = random_tokens(random_.between(1, 40));
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    if (static_cast<int32_t>(tokens.size()) >= config_.context_length)
      tokens.resize(config_.context_length - 1);
    return tokens;
  }

  Random& random_;
  const SchedulerConfig& config_;
  const bool constrained_;
  std::vector<std::vector<TokenId>> prefixes_;
};

}  // namespace

SchedulerConfig simulation_config(uint64_t seed, bool recurrent) {
  Random random(seed ^ 0xc0ffee);
  SchedulerConfig config;
  config.kv.block_size = random.pick({4, 8, 16});
  config.max_rows = random.between(1, 6);
  config.context_length = random.between(24, 160);
  config.chunk_size = random.pick({1, 7, 16, 64});
  config.max_step_tokens = std::max(config.max_rows, random.pick({8, 16, 64, 256}));
  config.max_log_patch_tokens =
      config.context_length + config.max_step_tokens + (random.one_in(2) ? 0 : 500);
  config.blocks_ahead_tokens = random.pick({0, 0, 8, 64});
  config.mixed =
      random.pick({MixedMode::kSplit, MixedMode::kSplit, MixedMode::kFold, MixedMode::kOff});
  const double base = random.pick({10, 200}), row = random.pick({1, 50}), token = random.pick({1, 20, 200});
  config.cost = {.base_us = base, .decode_row_us = row, .decode_kv_us = 0.01, .extend_token_us = token, .extend_pair_us = 0.005};
  config.kv.prefix_cache = !random.one_in(6);
  const int32_t context_blocks = config.context_length / config.kv.block_size + 1;
  const int32_t windows[4][3] = {{0, -1, -1}, {0, 1, -1}, {1, -1, -1}, {0, 1, 1}};
  const auto& shape = windows[random.between(0, 3)];
  for (int g = 0; g < 3 && shape[g] >= 0; ++g) {
    const int32_t window = shape[g] == 0 ? 0 : random.between(1, 50);
    // From less than one whole context to plenty for all rows.
    const int32_t tight = context_blocks + (config.max_rows - 1) * context_blocks / 4;
    const int32_t ample = context_blocks * config.max_rows + 8;
    const int32_t blocks = random.one_in(3) ? random.between(context_blocks / 2 + 2, ample)
                                            : random.between(context_blocks, tight);
    config.kv.groups.push_back({window, 1 + blocks});
  }
  if (recurrent) {
    config.kv.states = {.recurrent = true,
                        .num_checkpoints = random.pick({0, 1, 2, 4, 12, 40}),
                        .checkpoint_interval = config.kv.block_size * random.pick({1, 2, 4, 100}),
                        .checkpoint_min_tokens = random.pick({1, 8, 24})};
  }
  return config;
}

SimulationReport simulate(uint64_t seed, bool recurrent) {
  const SchedulerConfig config = simulation_config(seed, recurrent);
  Random random(seed);
  SimEngine engine(config);
  Workload workload(random, config, seed % 3 == 0);
  SimulationReport report;
  report.config = describe(config);
  const int32_t num_requests = random.between(4, 24);
  const int32_t arrival_gap = random.pick({1, 3, 12});
  const int32_t cancel_gap = random.pick({100, 1000, 1000000});
  const int32_t max_delay = random.between(0, 2);
  engine.masks().set_pace(random.pick({1, 1, 2, 8}), random.pick({0, 0, 200}), seed);
  while (engine.violation().empty()) {
    while (report.requests < uint64_t(num_requests) && random.one_in(arrival_gap)) {
      const int32_t copies = random.one_in(6) ? random.between(2, 4) : 1;
      const auto request = workload.next(engine);
      for (int32_t i = 0; i < copies; ++i) {
        auto copy = std::make_shared<Request>(*request);
        copy->id = next_request_id();
        copy->stream = std::make_shared<TokenStream>();
        ++report.requests;
        if (Status status = engine.admit(std::move(copy));
            !status.ok() && status.code() != StatusCode::kTooLarge) {
          report.violation = status.message();
          return report;
        }
      }
    }
    for (const auto& [id, answer] : engine.answers()) {
      if (answer.finished || !random.one_in(cancel_gap)) continue;
      answer.request->stream->cancel();
      ++report.cancels;
    }
    if (random.one_in(200)) engine.scheduler().flush_cache();
    if (engine.scheduler().idle() && report.requests >= uint64_t(num_requests)) break;
    engine.turn(random.between(0, max_delay));
    if (engine.num_steps() > 200000) report.violation = "no end";
    if (!report.violation.empty()) return report;
    if (report.requests >= uint64_t(num_requests) && cancel_gap == 1000000 && random.one_in(3)) {
      engine.run_until_idle(max_delay);
    }
  }
  engine.run_until_idle(max_delay);
  const SchedulerStats stats = engine.scheduler().stats();
  engine.check_idle_pools();
  report.violation = engine.violation();
  report.trace = engine.trace();
  report.steps = engine.num_steps();
  report.preemptions = stats.preemptions;
  report.cached_tokens = stats.cached_tokens;
  report.mixed_steps = stats.mixed_steps;
  report.checkpoint_starts = engine.num_checkpoint_starts();
  report.checkpoints = engine.num_checkpoints();
  report.late_masks = stats.late_masks;
  for (const auto& [id, answer] : engine.answers()) {
    const bool early = static_cast<int32_t>(answer.tokens.size()) < answer.request->max_tokens;
    report.early_ends += answer.finish == FinishReason::kLength && early;
  }
  return report;
}

}  // namespace tailrace
