// FakeDevice: runs launched steps in order, late, and knows for every KV cell which token prefix it
// was written for. It samples by a hash of what a row really read, so a foreign, stale or unwritten
// cell changes the answer and is reported; so does a recurrent state that is not the row's own. A row that sampled a
// stop id, or came before its mask, does nothing in steps queued behind.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "kv/kv_index.h"
#include "scheduler/step_plan.h"
#include "simulation/fake_masks.h"

namespace tailrace {

// The model: what follows a prefix. `chain` is prefix_chain over prompt and output so far, `len`
// their number.
inline constexpr TokenId kVocabulary = 100;
uint64_t chain_start(const std::string& salt);
uint64_t chain_next(uint64_t chain, TokenId token);
TokenId sample_token(uint64_t chain, int32_t len, const Request& request);

class FakeDevice {
 public:
  // `masks`: of constrained requests.
  FakeDevice(const KvIndexConfig& kv, int32_t max_rows, int32_t context_length, FakeMasks& masks);

  // Queues a step. Checks that it takes nothing away from the steps in flight.
  void launch(const StepPlan& plan);
  size_t num_inflight() const { return queue_.size(); }
  // Runs the oldest queued step; returns its sampled ids, in row order.
  StepResult complete_oldest();

  // The first violation seen, "" if none.
  const std::string& violation() const { return violation_; }

 private:
  struct LaunchedRow {
    PlanRow row;
    std::vector<std::vector<int32_t>>
        blocks;  // [group][block index], as the tables stood when the step was launched
  };
  struct LaunchedStep {
    uint64_t step;
    std::vector<LaunchedRow> rows;
    std::vector<LogPatch> log_patches;
    std::vector<RowStart> starts;
  };
  struct Slot {
    std::shared_ptr<const Request> request;
    std::vector<TokenId> log;
    std::vector<uint64_t> chain;  // chain[i] covers log[0..i]; valid for chain.size() entries
    int32_t log_end = 0;          // entries written since the row started
    bool stopped = false;         // a stop id was sampled: a step that was queued already leaves the row out
  };

  // A recurrent state: what it was folded from; `len` 0 with the chain's start is nothing.
  struct State {
    uint64_t chain = 0;
    int32_t len = -1;  // never written
  };

  void report(const std::string& what);
  uint64_t move_state(const LaunchedRow& row, uint64_t step);
  void check_states(const LaunchedStep& step);
  int32_t first_visible(int32_t pos, int32_t group) const;
  void check_against_inflight(const LaunchedStep& step);
  void start_rows(const LaunchedStep& step);
  void extend_chain(Slot& slot, int32_t len);
  void write_row(const LaunchedRow& row, uint64_t step);
  uint64_t read_row(const LaunchedRow& row, uint64_t step);
  uint64_t* cell(const LaunchedRow& row, int32_t group, int32_t pos);

  KvIndexConfig kv_;
  FakeMasks& masks_;
  std::vector<std::vector<uint64_t>>
      cells_;  // [group][block * block_size + offset]: chain value, 0 unwritten
  std::vector<std::vector<uint64_t>> cell_writers_;        // [group][...]: last step that wrote it
  std::vector<std::vector<std::vector<int32_t>>> tables_;  // [group][slot][block index]
  std::vector<Slot> slots_;
  std::vector<State> states_;       // [slot]
  std::vector<State> checkpoints_;  // [checkpoint]; 0 is nobody's
  std::deque<LaunchedStep> queue_;
  std::vector<TokenId> ids_;
  std::string violation_;
};

}  // namespace tailrace
