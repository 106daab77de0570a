// Admission: the line of waiting sequences, and whether the first of them fits beside the running
// ones. Counts blocks per KV group, and holds back more room after each preemption, by what the
// running sequences were seen to need.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/block_index.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace tailrace {

class Admission {
 public:
  explicit Admission(const SchedulerConfig& config) : config_(config) {}

  // Why a request can never run, if so.
  Status validate(const Request& request, const BlockIndex& index) const;

  // The waiting line is ordered by arrival, so that preempted sequences come before new ones.
  void enqueue(Sequence* sequence);
  const std::deque<Sequence*>& waiting() const { return waiting_; }
  Sequence* front() const { return waiting_.empty() ? nullptr : waiting_.front(); }
  void remove(Sequence* sequence);

  // Whether `sequence`, with the cached prefix `match`, fits beside `running`. `alone`: nothing
  // runs or leaves; then it fits.
  bool fits(const Sequence& sequence, const PrefixMatch& match, std::span<Sequence* const> running,
            const BlockIndex& index, bool alone) const;

  // Blocks ran out and a sequence of `running` is preempted: raises the reserve to what these have
  // used of their max_tokens.
  void on_preempted(std::span<Sequence* const> running);
  // A decode step was planned: the reserve decays slowly.
  void on_decode_step();

 private:
  int32_t expected_len(const Sequence& sequence) const;
  bool fits_by_tokens(const Sequence& sequence, std::span<Sequence* const> running,
                      const BlockIndex& index) const;

  const SchedulerConfig& config_;
  std::deque<Sequence*> waiting_;
  static constexpr double kMinReserve =
      0.05;  // share of max_tokens: most requests end long before their bound
  static constexpr double kReserveDecay =
      0.001;  // per decode step: 1000 steps from full reserve to none
  // Share of the tokens still allowed to a running sequence that is kept free for it.
  double reserve_ratio_ = kMinReserve;
};

}  // namespace tailrace
