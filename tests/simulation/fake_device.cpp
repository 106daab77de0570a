#include "simulation/fake_device.h"

#include <algorithm>

namespace tailrace {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t chain_start(const std::string& salt) {
  uint64_t chain = 0x243f6a8885a308d3ull;
  for (const char c : salt) chain = mix(chain ^ uint64_t(uint8_t(c)) ^ 0x100);
  return chain;
}

uint64_t chain_next(uint64_t chain, TokenId token) {
  return mix(chain + 0x9e3779b97f4a7c15ull + uint64_t(uint32_t(token))) | 1;
}

TokenId sample_token(uint64_t chain, int32_t len, const Request& request) {
  const TokenId token = static_cast<TokenId>(mix(chain ^ 0x5bf03635ull) % kVocabulary);
  const auto& stops = request.stop_token_ids;
  const bool is_stop = std::find(stops.begin(), stops.end(), token) != stops.end();
  const int32_t min_len = static_cast<int32_t>(request.prompt_ids.size()) + request.min_tokens;
  return is_stop && len < min_len ? kVocabulary + token : token;
}

FakeDevice::FakeDevice(const KvIndexConfig& kv, int32_t max_rows, int32_t context_length, FakeMasks& masks)
    : kv_(kv), masks_(masks) {
  const int32_t max_blocks = context_length / kv_.block_size + 2;
  for (const KvGroupConfig& group : kv_.groups) {
    cells_.emplace_back(size_t(group.num_blocks) * kv_.block_size, 0);
    cell_writers_.emplace_back(size_t(group.num_blocks) * kv_.block_size, 0);
    tables_.emplace_back(max_rows, std::vector<int32_t>(max_blocks, 0));
  }
  slots_.resize(max_rows);
  for (Slot& slot : slots_) slot.log.assign(context_length + 1, -1);
  states_.resize(max_rows);
  checkpoints_.resize(kv.states.num_checkpoints + 1);
}

void FakeDevice::report(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

int32_t FakeDevice::first_visible(int32_t pos, int32_t group) const {
  const int32_t window = kv_.groups[group].window;
  return window == 0 ? 0 : std::max(0, pos - window + 1);
}

void FakeDevice::launch(const StepPlan& plan) {
  LaunchedStep step{plan.step, {}, plan.log_patches, plan.starts};
  for (const BlockPatch& patch : plan.block_patches) {
    auto& table = tables_[patch.group][patch.slot];
    if (patch.first_index + patch.blocks.size() > table.size())
      return report("a block patch past the table");
    std::copy(patch.blocks.begin(), patch.blocks.end(), table.begin() + patch.first_index);
  }
  for (const PlanRow& row : plan.rows) {
    LaunchedRow launched{row, {}};
    const int32_t num_blocks = (row.kv_len() + kv_.block_size - 1) / kv_.block_size;
    for (const auto& table : tables_) {
      launched.blocks.emplace_back(table[row.slot].begin(), table[row.slot].begin() + num_blocks);
    }
    step.rows.push_back(std::move(launched));
  }
  check_against_inflight(step);
  check_states(step);
  queue_.push_back(std::move(step));
}

// A step in flight may read its cells, tables and log at any time until it has ended.
void FakeDevice::check_against_inflight(const LaunchedStep& step) {
  for (const LaunchedStep& other : queue_) {
    for (const LaunchedRow& reader : other.rows) {
      for (const RowStart& start : step.starts) {
        if (start.slot == reader.row.slot)
          report("slot " + std::to_string(start.slot) + " reused in flight");
      }
    }
  }
  if (queue_.empty()) return;
  for (size_t g = 0; g < kv_.groups.size(); ++g) {
    std::vector<uint8_t> read(cells_[g].size(), 0);
    for (const LaunchedStep& other : queue_) {
      for (const LaunchedRow& reader : other.rows) {
        for (int32_t pos = first_visible(reader.row.computed_len, g); pos < reader.row.kv_len();
             ++pos) {
          const int32_t block = reader.blocks[g][pos / kv_.block_size];
          read[size_t(block) * kv_.block_size + pos % kv_.block_size] = 1;
        }
      }
    }
    for (const LaunchedRow& writer : step.rows) {
      for (int32_t pos = writer.row.computed_len; pos < writer.row.kv_len(); ++pos) {
        const int32_t block = writer.blocks[g][pos / kv_.block_size];
        if (read[size_t(block) * kv_.block_size + pos % kv_.block_size]) {
          report("block " + std::to_string(block) + " reused in flight");
        }
      }
    }
  }
}

// Whoever starts from a checkpoint in a step that has not ended, or in this one, must find it as it was.
void FakeDevice::check_states(const LaunchedStep& step) {
  const auto is_checkpoint = [&](int32_t id) { return id > 0 && id < static_cast<int32_t>(checkpoints_.size()); };
  for (const LaunchedRow& writer : step.rows) {
    const int32_t saved = writer.row.state_save, from = writer.row.state_from;
    if (!kv_.states.recurrent && (saved != 0 || from != 0)) report("a state where no layer has any");
    if (from > 0 && !is_checkpoint(from)) report("no such checkpoint to start from");
    if (saved == 0) continue;
    if (!is_checkpoint(saved)) return report("no such checkpoint to save to");
    const auto name = "checkpoint " + std::to_string(saved);
    for (const LaunchedRow& other : step.rows) {
      if (other.row.state_from == saved) report(name + " is read and written in one step");
      if (&other != &writer && other.row.state_save == saved) report(name + " has two writers in one step");
    }
    for (const LaunchedStep& running : queue_) {
      for (const LaunchedRow& other : running.rows) {
        if (other.row.state_from == saved) report(name + " reused in flight");
        if (other.row.state_save == saved && other.row.request_id != writer.row.request_id)
          report(name + " has two owners in flight");
      }
    }
  }
}

// 0 where the state that the row goes on from is that of its own prefix.
uint64_t FakeDevice::move_state(const LaunchedRow& row, uint64_t step) {
  if (!kv_.states.recurrent) return 0;
  const Slot& slot = slots_[row.row.slot];
  const uint64_t start = chain_start(slot.request->cache_salt);
  State from = row.row.state_from > 0 ? checkpoints_[row.row.state_from] : states_[row.row.slot];
  if (row.row.state_from < 0) from = {start, 0};
  const uint64_t right = row.row.computed_len > 0 ? slot.chain[row.row.computed_len - 1] : start;
  const uint64_t wrong = from.len == row.row.computed_len ? from.chain ^ right : 1;
  if (wrong != 0) {
    report("step " + std::to_string(step) + ": request " + std::to_string(row.row.request_id) + " goes on at " +
           std::to_string(row.row.computed_len) + " from a state of " + std::to_string(from.len) + " other tokens");
  }
  const State now{slot.chain[row.row.kv_len() - 1] + wrong, row.row.kv_len()};
  states_[row.row.slot] = now;
  if (row.row.state_save > 0) checkpoints_[row.row.state_save] = now;
  return wrong;
}

void FakeDevice::start_rows(const LaunchedStep& step) {
  for (const RowStart& start : step.starts) {
    Slot& slot = slots_[start.slot];
    slot.request = start.request;
    slot.chain.clear();
    slot.log_end = 0;
    slot.stopped = false;
    std::fill(slot.log.begin(), slot.log.end(),
              -1);  // a missing patch must not be hidden by the last user's tokens
  }
  for (const LogPatch& patch : step.log_patches) {
    Slot& slot = slots_[patch.slot];
    if (patch.first + patch.ids.size() > slot.log.size()) return report("a log patch past the log");
    std::copy(patch.ids.begin(), patch.ids.end(), slot.log.begin() + patch.first);
    if (patch.first > slot.log_end) report("a hole in the token log");
    slot.log_end = std::max(slot.log_end, patch.first + static_cast<int32_t>(patch.ids.size()));
    if (static_cast<int32_t>(slot.chain.size()) > patch.first) slot.chain.resize(patch.first);
  }
}

void FakeDevice::extend_chain(Slot& slot, int32_t len) {
  while (static_cast<int32_t>(slot.chain.size()) < len) {
    const size_t i = slot.chain.size();
    const uint64_t before = i == 0 ? chain_start(slot.request->cache_salt) : slot.chain[i - 1];
    slot.chain.push_back(chain_next(before, slot.log[i]));
  }
}

uint64_t* FakeDevice::cell(const LaunchedRow& row, int32_t group, int32_t pos) {
  const int32_t block = row.blocks[group][pos / kv_.block_size];
  if (block <= 0 || block >= kv_.groups[group].num_blocks) {
    report("position " + std::to_string(pos) + " of request " + std::to_string(row.row.request_id) +
           " has block " + std::to_string(block));
    return nullptr;
  }
  return &cells_[group][size_t(block) * kv_.block_size + pos % kv_.block_size];
}

void FakeDevice::write_row(const LaunchedRow& row, uint64_t step) {
  const Slot& slot = slots_[row.row.slot];
  for (int32_t g = 0; g < static_cast<int32_t>(kv_.groups.size()); ++g) {
    for (int32_t pos = row.row.computed_len; pos < row.row.kv_len(); ++pos) {
      uint64_t* target = cell(row, g, pos);
      if (target == nullptr) return;
      uint64_t& writer = cell_writers_[g][target - cells_[g].data()];
      if (writer == step) report("a KV cell has two writers in one step");
      writer = step;
      *target = slot.chain[pos];
    }
  }
}

// Everything the row's queries see; 0 when all of it is the row's own prefix.
uint64_t FakeDevice::read_row(const LaunchedRow& row, uint64_t step) {
  const Slot& slot = slots_[row.row.slot];
  uint64_t difference = 0;
  for (int32_t g = 0; g < static_cast<int32_t>(kv_.groups.size()); ++g) {
    for (int32_t pos = first_visible(row.row.computed_len, g); pos < row.row.kv_len(); ++pos) {
      const uint64_t* source = cell(row, g, pos);
      const uint64_t wrong = source == nullptr ? 1 : *source ^ slot.chain[pos];
      if (wrong == 0) continue;
      difference = difference * 31 + wrong;
      report("step " + std::to_string(step) + ": position " + std::to_string(pos) + " of request " +
             std::to_string(row.row.request_id) + " reads another prefix's KV (group " +
             std::to_string(g) + ")");
    }
  }
  return difference;
}

StepResult FakeDevice::complete_oldest() {
  const LaunchedStep step = std::move(queue_.front());
  queue_.pop_front();
  start_rows(step);
  ids_.assign(step.rows.size(), -1);
  for (const LaunchedRow& row : step.rows) {
    Slot& slot = slots_[row.row.slot];
    if (slot.stopped) continue;
    if (slot.log_end < row.row.kv_len()) report("a row runs past its token log");
    extend_chain(slot, row.row.kv_len());
    write_row(row, step.step);
  }
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const LaunchedRow& row = step.rows[i];
    Slot& slot = slots_[row.row.slot];
    if (slot.stopped) continue;
    const int32_t len = row.row.kv_len();
    const uint64_t difference = read_row(row, step.step) + move_state(row, step.step);
    if (!row.row.samples) continue;
    if (slot.request->constraint && !masks_.ready(row.row.slot, *slot.request, len)) {
      slot.stopped = true;
      continue;
    }
    ids_[i] = sample_token(slot.chain[len - 1] + difference, len, *slot.request);
    const auto& stops = slot.request->stop_token_ids;
    slot.stopped = std::find(stops.begin(), stops.end(), ids_[i]) != stops.end();
    slot.log[len] = ids_[i];
    slot.log_end = std::max(slot.log_end, len + 1);
    slot.chain.resize(len);
  }
  return {step.step, ids_};
}

}  // namespace tailrace
