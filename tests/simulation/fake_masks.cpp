#include "simulation/fake_masks.h"

#include <algorithm>

namespace tailrace {
namespace {

class NoConstraint : public TokenConstraint {
 public:
  Expected<std::unique_ptr<ConstraintRun>> start() const override { return fail(invalid("never asked")); }
};

}  // namespace

std::shared_ptr<const TokenConstraint> fake_constraint() { return std::make_shared<NoConstraint>(); }

class FakeMasks::Run : public MaskRun {
 public:
  Run(FakeMasks& owner, uint64_t id) : owner_(owner), id_(id) {}
  ~Run() override {
    if (answer().slot >= 0) owner_.violation_ = "an answer went away with its slot bound";
    owner_.answers_.erase(id_);
  }
  void push(TokenId) override { answer().len++; }
  void bind(int32_t slot) override {
    answer().slot = slot;
    if (slot >= 0) owner_.publish(answer());
  }
  int32_t ready_len() const override { return answer().ready_len; }
  Status failure() const override { return answer().failed ? invalid("the grammar failed") : Status(); }

 private:
  Answer& answer() const { return owner_.answers_.at(id_); }
  FakeMasks& owner_;
  const uint64_t id_;
};

std::unique_ptr<MaskRun> FakeMasks::open(std::shared_ptr<const Request> request) {
  answers_[request->id] = {.id = request->id, .len = static_cast<int32_t>(request->prompt_ids.size())};
  return std::make_unique<Run>(*this, request->id);
}

bool FakeMasks::one_in(uint32_t n) {
  random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
  return n > 0 && random_ % n == 0;
}

void FakeMasks::publish(const Answer& answer) {
  if (answer.slot >= 0) table_[answer.slot] = {answer.id, answer.ready_len};
}

void FakeMasks::tick() {
  for (auto& [id, answer] : answers_) {
    if (answer.failed || answer.ready_len == answer.len || !one_in(gap_)) continue;
    if (one_in(failures_)) {
      answer.failed = true;
      continue;
    }
    answer.ready_len = answer.len;
    publish(answer);
  }
}

bool FakeMasks::pending() const {
  return std::any_of(answers_.begin(), answers_.end(),
                     [](const auto& entry) { return entry.second.ready_len != entry.second.len; });
}

bool FakeMasks::ready(int32_t slot, const Request& request, int32_t len) {
  const Place& place = table_[slot];
  if (place.len != len) return false;
  if (place.id != request.id) violation_ = "request " + std::to_string(request.id) + " is sampled under another's mask";
  return true;
}

}  // namespace tailrace
