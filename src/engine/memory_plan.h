// MemoryPlan: every byte the engine claims, computed before anything is claimed, and printed as a ledger.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "batch/slab_writer.h"
#include "kernels/backend.h"
#include "kv/kv_index.h"
#include "model/model.h"

namespace tailrace {

// What the operator bounds; everything else is derived.
struct EngineLimits {
  int32_t max_rows = 32;             // --max-running-requests
  int32_t context_length = 0;        // --context-length; 0: what the model is made for
  int32_t chunk_size = 512;          // --chunked-prefill-size: ceiling of the extend tokens of a step
  int32_t block_size = 16;
  double mem_fraction = 0.6;         // --mem-fraction-static: share of the device's free memory that may be claimed
  int64_t max_total_tokens = 0;      // --max-total-tokens: KV tokens of the full group; 0: derived
  int64_t default_total_tokens = 65536;  // a derived pool holds at most this, or one context; 0: what the memory allows
  bool prefix_cache = true;          // --cache-type radix
  double window_tree_share = 0.25;   // of a window group's pool, on top of what running rows need
  int32_t max_checkpoints = -1;      // of recurrent states; -1: derived
  int32_t checkpoint_interval = 2048, checkpoint_min_tokens = 128;  // as in StateIndexConfig
};

// What the operator leaves open, for a device of `kind` ("cpu", "cuda").
EngineLimits default_limits(const std::string& kind);

struct LedgerLine {
  std::string name;
  size_t bytes = 0;
  std::string detail;  // how it came about, for a person
};

struct MemoryPlan {
  int32_t context_length = 0;        // effective: never more than the pool holds
  int32_t max_step_tokens = 0;
  KvIndexConfig kv;
  StepLimits step;
  SlabLimits slab;
  std::vector<LedgerLine> ledger;
  std::vector<std::string> notes;    // decisions worth a line in the start-up report
  // What the device has free, and the share that may be claimed; 0: unknown.
  size_t memory_bytes = 0, allowed_bytes = 0;
  Status fits;  // kResourceExhausted with the numbers and what to change; KV is then of one context, if not asked for
  size_t total_bytes() const;
};

// weight_bytes: WeightLoader::bytes(). memory_bytes: what the device has (0: unknown, everything fits).
// sampled_vocab: ids that may be sampled, at most the head's rows. Errors: what the backend cannot serve at all;
// whether there is memory for it stands in MemoryPlan::fits.
Expected<MemoryPlan> plan_memory(const Model& model, size_t weight_bytes, const Backend& backend,
                                 const EngineLimits& limits, size_t memory_bytes, int64_t sampled_vocab);

// The ledger as a table for a terminal, and below its total what there is.
std::string format_ledger(const MemoryPlan& plan);

}  // namespace tailrace
