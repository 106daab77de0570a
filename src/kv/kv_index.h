// Shapes of the KV layer groups that the index (host) and the pools (device) share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tailrace {

// One KV layer group: layers that keep the same tokens. window 0: all of them; W: the last W (the query included).
struct KvGroupConfig {
  int32_t window = 0;
  int32_t num_blocks = 0;     // block 0 is the dummy, never handed out
};

// States of recurrent layers. A running row has one of its own; a prefix that ends at a checkpoint can be gone on from.
struct StateIndexConfig {
  bool recurrent = false;             // the model has such layers: a prefix match ends at a checkpoint
  int32_t num_checkpoints = 0;        // checkpoint 0 is nobody's and not counted: 1 .. num_checkpoints are handed out
  int32_t checkpoint_interval = 2048; // tokens, whole blocks: each multiple gets a checkpoint, and the prompt's last whole block
  int32_t checkpoint_min_tokens = 128;  // between two checkpoints of a sequence: fewer are computed again
};

struct KvIndexConfig {
  int32_t block_size = 16;                // tokens; one size per process
  std::vector<KvGroupConfig> groups;      // at least one; group 0 is full unless every layer has a window
  bool prefix_cache = true;               // false: --cache-type naive
  StateIndexConfig states;
};

// Use of one group's pool, in blocks. free + cached (tree only) + owned (by sequences, shared ones once) = num_blocks - 1.
struct KvGroupUsage {
  int32_t free = 0, cached = 0, owned = 0;
};

}  // namespace tailrace
