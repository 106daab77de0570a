#include "support/step_driver.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/limits.h"

namespace tailrace {

StepDriver::StepDriver(const EngineSetup& setup) {
  auto host = EngineHost::create(setup, queue_, status_, nullptr);
  EXPECT_TRUE(host.has_value()) << host.error().message();
  if (!host) return;
  host_ = std::move(*host);
  len_.assign(host_->report().memory.step.max_rows, 0);
  fresh_.assign(len_.size(), true);
  request_->sampling.temperature = 0;
  step_ = 1000;  // behind whatever was run to measure
}

void StepDriver::restart(int slot, int32_t at) {
  len_[slot] = at;
  fresh_[slot] = true;
}

void StepDriver::add(int slot, const std::vector<TokenId>& tokens, bool decode) {
  const MemoryPlan& memory = host_->report().memory;
  const int32_t block_size = memory.kv.block_size;
  const auto q_len = static_cast<int32_t>(tokens.size());
  plan_.rows.push_back({.slot = slot, .computed_len = len_[slot], .q_len = q_len, .samples = true,
                        .state_from = fresh_[slot] ? kZeroState : 0});
  plan_.num_tokens += q_len;
  plan_.num_decode_rows += decode;
  if (fresh_[slot]) plan_.starts.push_back({slot, request_});
  fresh_[slot] = false;
  plan_.log_patches.push_back({slot, len_[slot], tokens});
  const int32_t first = len_[slot] / block_size;
  const int32_t last = (len_[slot] + q_len - 1) / block_size;
  for (size_t g = 0; g < memory.kv.groups.size(); ++g) {
    const KvGroupConfig& group = memory.kv.groups[g];
    const int32_t share = (group.num_blocks - 1) / memory.step.max_rows;
    // A window group's blocks are used in a ring: what lies before the window is overwritten.
    CHECK(last < share || (group.window > 0 && share * block_size >= group.window - 1 + q_len + block_size));
    BlockPatch patch{.group = static_cast<int32_t>(g), .slot = slot, .first_index = first};
    for (int32_t i = first; i <= last; ++i) patch.blocks.push_back(1 + slot * share + i % share);
    plan_.block_patches.push_back(std::move(patch));
  }
  len_[slot] += q_len;
}

void StepDriver::decode(int slot, TokenId token) {
  CHECK(plan_.num_decode_rows == static_cast<int32_t>(plan_.rows.size()));
  add(slot, {token}, true);
}

void StepDriver::extend(int slot, const std::vector<TokenId>& tokens) { add(slot, tokens, false); }

std::vector<std::vector<float>> StepDriver::run() {
  plan_.step = ++step_;
  ModelRunner& runner = host_->runner();
  runner.launch(plan_).done->wait("step_result");
  std::vector<std::vector<float>> logits;
  const float* row = runner.backend().last_logits();
  for (size_t i = 0; i < plan_.rows.size(); ++i, row += vocab()) logits.emplace_back(row, row + vocab());
  plan_ = StepPlan{};
  return logits;
}

std::vector<std::vector<float>> StepDriver::logits_in_chunks(const std::vector<TokenId>& tokens, int chunk) {
  std::vector<std::vector<float>> logits;
  restart(0);
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const size_t end = std::min(tokens.size(), begin + chunk);
    if (chunk == 1 && begin > 0) {
      decode(0, tokens[begin]);
    } else {
      extend(0, {tokens.begin() + begin, tokens.begin() + end});
    }
    logits.push_back(run()[0]);
  }
  return logits;
}

}  // namespace tailrace
