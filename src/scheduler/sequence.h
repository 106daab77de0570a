// Sequence: the engine's state for one request. Owned by the scheduler; only its parts change it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/request.h"
#include "kv/block_index.h"
#include "kv/sequence_kv.h"
#include "scheduler/mask_source.h"

namespace tailrace {

enum class SequenceState : uint8_t {
  kWaiting,     // no slot, no blocks
  kRunning,     // has a slot; may take part in the next step
  kPreempting,  // planned no more; goes back to waiting when no launched step uses it
  kRetiring,    // its end was reported; goes away when no launched step uses it
};

struct Sequence {
  std::shared_ptr<const Request> request;
  TokenStream* stream = nullptr;  // request->stream
  uint64_t arrival = 0;           // order of admit(): the priority, lowest first
  SequenceState state = SequenceState::kWaiting;

  std::vector<TokenId> tokens;   // prompt and delivered tokens
  std::vector<uint64_t> hashes;  // content hash of each whole block of `tokens`

  int32_t prompt_len = 0;
  int32_t max_len = 0;       // prompt_len + max_tokens
  int32_t prefill_len = 0;   // tokens known at admission: they are computed by extend rows
  int32_t computed_len = 0;  // tokens whose KV exists once all planned steps have run
  int32_t planned_len =
      0;  // tokens that exist once all planned steps have run; > tokens.size() while in flight
  int32_t logged_len = 0;  // tokens sent to the device's token log of the slot
  int32_t slot = -1;
  int32_t inflight = 0;        // planned steps whose result has not arrived
  uint64_t last_step = 0;      // last planned step
  uint64_t waits_for = 0;      // arrival of the row in prefill whose blocks it wants to match first
  int32_t waits_for_gain = 0;  // prompt tokens that this spares
  PrefixMatch refused_match;  // what it was refused with (path empty): asked again with this before
                              // a new look-up
  uint64_t refused_step = 0;  // 0: never
  bool admitted_before = false;
  bool state_begun = false;    // a step was planned that starts its recurrent state
  int32_t checkpoint_len = 0;  // tokens of its last checkpoint, matched or saved
  int32_t shared_len = 0;      // tokens that the tree had of it when it started: others share them
  bool finished = false;  // its finish update was given
  bool stopped = false;   // by its last token: the device gave that one no KV, though a step was planned for it
  std::unique_ptr<MaskRun> masks;  // of a constrained request
  int32_t eager_from = 0;   // from this many tokens on, steps are planned before their mask is there
  int32_t late_backoff = 0; // tokens for which they are not, after the last mask that came late
  SequenceKv kv;

  int32_t known_len() const { return static_cast<int32_t>(tokens.size()); }
  bool prefilling() const { return computed_len < prefill_len; }
  int32_t remaining_prefill() const { return prefill_len - computed_len; }
  // Every token that it may have is planned: only results are awaited.
  bool exhausted() const { return !prefilling() && planned_len >= max_len; }
  bool ready_to_decode() const { return !prefilling() && planned_len < max_len; }
  // What a step that samples token number planned_len needs. Eagerly: the mask is computed while the step runs, and comes
  // before its sampler mostly.
  bool mask_is_there() const { return !masks || (planned_len == known_len() && masks->ready_len() == planned_len); }
  bool mask_will_do() const { return !masks || planned_len >= eager_from || mask_is_there(); }
  // Tokens whose KV a launched step wrote and whose ids are known: what the prefix cache may take.
  // The last sampled token has no KV unless a later step ran; a stop token never has.
  int32_t written_len() const { return std::min(computed_len, known_len() - (stopped ? 1 : 0)); }

  void hash_whole_blocks(int32_t block_size) {
    const size_t whole = tokens.size() / block_size;
    while (hashes.size() < whole) {
      hashes.push_back(hash_block(
          {tokens.data() + hashes.size() * block_size, static_cast<size_t>(block_size)}));
    }
  }
  KeyedTokens key() const { return {tokens, hashes, request->cache_salt}; }
};

}  // namespace tailrace
