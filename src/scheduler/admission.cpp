#include "scheduler/admission.h"

#include <algorithm>
#include <string>

#include "base/test_fault.h"

namespace tailrace {

Status Admission::validate(const Request& request, const BlockIndex& index) const {
  const int64_t prompt_len = static_cast<int64_t>(request.prompt_ids.size());
  if (prompt_len < 1) return invalid("the prompt has no tokens");
  if (request.max_tokens < 1)
    return invalid("max_tokens is " + std::to_string(request.max_tokens) + ", must be at least 1");
  const auto at_most = [](const char* what, size_t given, int most) -> Status {
    if (given <= static_cast<size_t>(most)) return {};
    return invalid(std::to_string(given) + " " + what + ", at most " + std::to_string(most) + " are taken");
  };
  if (Status s = at_most("logit_bias entries", request.sampling.logit_bias.size(), kMaxLogitBias); !s.ok()) return s;
  if (Status s = at_most("stop token ids", request.stop_token_ids.size(), kMaxStopTokenIds); !s.ok()) return s;
  if (prompt_len + request.max_tokens > config_.context_length) {
    return invalid("the prompt has " + std::to_string(prompt_len) + " tokens and max_tokens is " +
                   std::to_string(request.max_tokens) +
                   ": together more than the context length of " +
                   std::to_string(config_.context_length));
  }
  for (int32_t g = 0; g < index.num_groups(); ++g) {
    const int32_t need = index.max_blocks(g, prompt_len, 1);
    if (need <= index.total(g)) continue;
    return Status(StatusCode::kTooLarge,
                  "the prompt of " + std::to_string(prompt_len) + " tokens needs " +
                      std::to_string(need) + " KV blocks of group " + std::to_string(g) +
                      ", whose pool has " + std::to_string(index.total(g)) + " (" +
                      std::to_string(index.block_size()) + " tokens each)");
  }
  return {};
}

void Admission::enqueue(Sequence* sequence) {
  auto at = waiting_.end();
  while (at != waiting_.begin() && (*(at - 1))->arrival > sequence->arrival) --at;
  waiting_.insert(at, sequence);
}

void Admission::remove(Sequence* sequence) {
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), sequence));
}

// Tokens that a row is expected to end with: it keeps its blocks ahead, and grows by the measured
// share of what it may.
int32_t Admission::expected_len(const Sequence& sequence) const {
  const int32_t known_len = std::max(sequence.planned_len, sequence.prefill_len);
  const int32_t growth =
      std::max(config_.blocks_ahead_tokens,
               static_cast<int32_t>(reserve_ratio_ * (sequence.max_len - known_len)));
  return std::min(sequence.max_len - 1, known_len + growth);  // the last token's KV is never needed
}

bool Admission::fits_by_tokens(const Sequence& sequence, std::span<Sequence* const> running,
                               const BlockIndex& index) const {
  int64_t free_tokens = int64_t(index.total(0)) * index.block_size();
  for (const Sequence* row : running) free_tokens -= row->planned_len;
  return sequence.known_len() <= free_tokens;
}

bool Admission::fits(const Sequence& sequence, const PrefixMatch& match,
                     std::span<Sequence* const> running, const BlockIndex& index,
                     bool alone) const {
  if (alone) return true;
  if (test_fault(Fault::kAdmitByTokens)) return fits_by_tokens(sequence, running, index);
  int64_t prefill_left =
      sequence.remaining_prefill() - int64_t(match.num_blocks) * index.block_size();
  for (const Sequence* row : running) prefill_left += std::max(0, row->remaining_prefill());
  for (int32_t g = 0; g < index.num_groups(); ++g) {
    const bool full = index.config().groups[g].window == 0;
    int64_t need = 0, beyond_window = 0;
    const auto add = [&](const Sequence& row, int32_t size, int32_t held) {
      const int32_t most =
          index.max_blocks(g, expected_len(row), std::max(1, config_.blocks_ahead_tokens));
      const int32_t more = most - (full ? size : held);
      if (more > 0)
        need += more;
      else
        beyond_window -= more;
    };
    add(sequence, match.num_blocks, match.num_blocks - match.first_held[g]);
    for (const Sequence* row : running)
      add(*row, row->kv.groups[g].size(), row->kv.groups[g].num_held());
    if (!full) {
      // The chunk of one step and of the step in flight lie in front of the windows; all rows share
      // them.
      const int64_t chunks =
          index.blocks_for(std::min<int64_t>(2 * int64_t(config_.chunk_size), prefill_left));
      need += std::max<int64_t>(0, chunks - beyond_window);
    }
    if (need > index.available(g) - match.num_unlocked[g]) return false;
  }
  return true;
}

void Admission::on_preempted(std::span<Sequence* const> running) {
  if (test_fault(Fault::kNoPreemptBackoff)) return;
  double used = 0, allowed = 0;
  for (const Sequence* row : running) {
    used += row->planned_len - row->prompt_len + config_.blocks_ahead_tokens;
    allowed += row->max_len - row->prompt_len;
  }
  const double measured = allowed > 0 ? used / allowed : 1.0;
  reserve_ratio_ = std::min(1.0, std::max(measured, reserve_ratio_ * 1.5));
}

void Admission::on_decode_step() {
  reserve_ratio_ = std::max(kMinReserve, reserve_ratio_ - kReserveDecay);
}

}  // namespace tailrace
