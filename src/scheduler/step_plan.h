// StepPlan: what one step runs, as the host knows it: rows, lengths, block-table changes. Immutable once made.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/request.h"

namespace tailrace {

struct PlanRow {
  uint64_t request_id = 0;
  int32_t slot = 0;          // row of the device tables; free again only when no launched step uses it
  int32_t computed_len = 0;  // tokens whose KV exists before this step (cached ones included)
  int32_t q_len = 0;         // tokens this step computes
  bool samples = false;      // the row's last token is sampled from: decode rows and last chunks
  int32_t state_from = 0;    // of models with recurrent layers: as BatchRow's
  int32_t state_save = 0;
  int32_t kv_len() const { return computed_len + q_len; }
};

// block_table[group][slot][first_index + i] = blocks[i]
struct BlockPatch {
  int32_t group = 0;
  int32_t slot = 0;
  int32_t first_index = 0;
  std::vector<int32_t> blocks;
};

// token_log[slot][first + i] = ids[i]: the tokens a step needs on the device that no sampler wrote there.
struct LogPatch {
  int32_t slot = 0;
  int32_t first = 0;
  std::vector<TokenId> ids;
};

// A sequence takes over `slot`: its sampling state is written there before the step runs.
struct RowStart {
  int32_t slot = 0;
  std::shared_ptr<const Request> request;
};

struct StepPlan {
  uint64_t step = 0;                 // 1, 2, ...
  std::vector<PlanRow> rows;         // decode rows first
  int32_t num_decode_rows = 0;
  int32_t num_tokens = 0;            // sum of q_len
  std::vector<RowStart> starts;
  std::vector<BlockPatch> block_patches;
  std::vector<LogPatch> log_patches;
  double predicted_us = 0;           // by the cost model
  double decode_only_us = 0;         // predicted cost of the decode rows alone

  bool empty() const { return rows.empty(); }
};

// The sampled ids of a step, in row order; entries of rows that do not sample are ignored.
struct StepResult {
  uint64_t step = 0;
  std::span<const TokenId> ids;
};

}  // namespace tailrace
