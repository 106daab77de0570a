// FakeMasks: a MaskSource whose masks come when the test lets them, and a table that knows whose they are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/mask_source.h"

namespace tailrace {

// For requests in simulations: what is allowed is never asked.
std::shared_ptr<const TokenConstraint> fake_constraint();

class FakeMasks : public MaskSource {
 public:
  explicit FakeMasks(int32_t max_rows) : table_(static_cast<size_t>(max_rows)) {}

  std::unique_ptr<MaskRun> open(std::shared_ptr<const Request> request) override;
  // Masks are computed now with a chance of one in `gap`, and fail instead with one in `failures`; 0: never.
  void set_pace(uint32_t gap, uint32_t failures, uint64_t seed) { gap_ = gap, failures_ = failures, random_ = seed | 1; }
  void tick();
  bool pending() const;

  // Whether the table holds the mask that `request` needs at `len`; another answer's is reported.
  bool ready(int32_t slot, const Request& request, int32_t len);
  const std::string& violation() const { return violation_; }

 private:
  struct Answer {
    uint64_t id = 0;
    int32_t len = 0, ready_len = -1, slot = -1;
    bool failed = false;
  };
  struct Place {
    uint64_t id = 0;
    int32_t len = -1;
  };
  class Run;

  void publish(const Answer& answer);
  bool one_in(uint32_t n);

  std::map<uint64_t, Answer> answers_;
  std::vector<Place> table_;  // [slot]
  uint32_t gap_ = 1, failures_ = 0;
  uint64_t random_ = 1;
  std::string violation_;
};

}  // namespace tailrace
