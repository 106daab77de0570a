#include "engine/mask_workers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <semaphore>
#include <thread>

namespace tailrace {
namespace {

constexpr int64_t kVocab = 70, kWords = mask_words(kVocab);

// After n tokens with sum s, token (n + s) % 60 may come, and token 64; a token 13 fails. Each mask waits for a permit.
class Rule : public TokenConstraint {
 public:
  explicit Rule(std::counting_semaphore<>& permits) : permits_(permits) {}
  class Run : public ConstraintRun {
   public:
    explicit Run(std::counting_semaphore<>& permits) : permits_(permits) {}
    Status next(std::span<const int32_t> tokens, std::span<uint32_t> mask) override {
      permits_.acquire();
      for (int32_t token : tokens) {
        if (token == 13) return invalid("thirteen");
        sum_ += token + 1;
      }
      std::fill(mask.begin(), mask.end(), 0);
      mask[sum_ % 60 / 32] |= 1u << (sum_ % 60 % 32);
      mask[2] |= 1;
      return {};
    }

   private:
    std::counting_semaphore<>& permits_;
    int32_t sum_ = 0;
  };
  Expected<std::unique_ptr<ConstraintRun>> start() const override { return std::make_unique<Run>(permits_); }

 private:
  std::counting_semaphore<>& permits_;
};

class MaskWorkersTest : public ::testing::Test {
 protected:
  MaskWorkersTest() : words_(4 * kWords), len_(4 * kMaskLenStride) {}
  MaskTable table() { return {words_.data(), len_.data(), kWords}; }
  std::shared_ptr<Request> request(int prompt_len) {
    auto out = std::make_shared<Request>();
    out->prompt_ids.assign(prompt_len, 1);
    out->constraint = std::make_shared<Rule>(permits_);
    return out;
  }
  static bool wait_for(const std::function<bool()>& done) {
    for (int i = 0; i < 5000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return done();
  }
  int32_t len(int slot) { return __atomic_load_n(&len_[slot * kMaskLenStride], __ATOMIC_ACQUIRE); }
  bool allowed(int slot, int token) { return (words_[slot * kWords + token / 32] >> (token % 32) & 1) != 0; }

  std::vector<uint32_t> words_;
  std::vector<int32_t> len_;
  EngineStatus status_;
  std::counting_semaphore<> permits_{0};
  std::atomic<int> wakes_{0};
  MaskWorkers workers_{table(), 2, status_, [this] { wakes_++; }};
};

TEST_F(MaskWorkersTest, masks_follow_the_tokens_into_the_slot) {
  auto run = workers_.open(request(5));
  EXPECT_EQ(run->ready_len(), -1);
  permits_.release(1);
  ASSERT_TRUE(wait_for([&] { return run->ready_len() == 5; }));
  EXPECT_EQ(len(2), 0);  // not bound: nothing is written
  run->bind(2);
  EXPECT_EQ(len(2), 5);
  EXPECT_TRUE(allowed(2, 0) && allowed(2, 64) && !allowed(2, 1));
  run->push(3);
  EXPECT_EQ(len(2), 5);
  permits_.release(1);
  ASSERT_TRUE(wait_for([&] { return run->ready_len() == 6; }));
  EXPECT_EQ(len(2), 6);
  EXPECT_TRUE(allowed(2, 4) && !allowed(2, 0));
  EXPECT_GE(wakes_.load(), 1);
  EXPECT_TRUE(wait_for([&] { return status_.masks == 2; }));
}

TEST_F(MaskWorkersTest, a_slot_forgets_its_last_occupant_and_an_unbound_answer_writes_nothing) {
  auto first = workers_.open(request(5));
  first->bind(1);
  permits_.release(1);
  ASSERT_TRUE(wait_for([&] { return len(1) == 5; }));
  first->push(7);
  first->bind(-1);
  auto second = workers_.open(request(6));
  second->bind(1);
  EXPECT_EQ(len(1), -1);
  permits_.release(1);  // of either
  permits_.release(1);
  ASSERT_TRUE(wait_for([&] { return first->ready_len() == 6 && second->ready_len() == 6; }));
  EXPECT_TRUE(allowed(1, 0) && !allowed(1, 8));  // the second's, though both follow six tokens
  first->bind(3);  // goes on elsewhere with the mask it has
  EXPECT_EQ(len(3), 6);
  EXPECT_TRUE(allowed(3, 8));
}

TEST_F(MaskWorkersTest, min_tokens_holds_stop_ids_back_unless_nothing_else_may_come) {
  auto asked = request(5);
  asked->stop_token_ids = {64};
  asked->min_tokens = 2;
  auto run = workers_.open(asked);
  run->bind(0);
  permits_.release(1);
  ASSERT_TRUE(wait_for([&] { return len(0) == 5; }));
  EXPECT_TRUE(allowed(0, 0) && !allowed(0, 64));
  asked = request(5);
  asked->stop_token_ids = {0, 64};
  asked->min_tokens = 2;
  run = workers_.open(asked);
  run->bind(0);
  permits_.release(1);
  ASSERT_TRUE(wait_for([&] { return len(0) == 5; }));
  EXPECT_TRUE(allowed(0, 0) && allowed(0, 64));
}

TEST_F(MaskWorkersTest, a_rule_that_fails_says_why_and_computes_no_more) {
  auto run = workers_.open(request(2));
  permits_.release(8);
  ASSERT_TRUE(wait_for([&] { return run->ready_len() == 2; }));
  run->push(13);
  ASSERT_TRUE(wait_for([&] { return !run->failure().ok(); }));
  EXPECT_EQ(run->failure().message(), "thirteen");
  run->push(1);
  EXPECT_EQ(run->ready_len(), 2);
}

TEST_F(MaskWorkersTest, answers_that_go_away_at_any_time_leave_the_others_alone) {
  permits_.release(100000);
  std::vector<std::unique_ptr<MaskRun>> runs;
  for (int i = 0; i < 200; ++i) {
    runs.push_back(workers_.open(request(3)));
    for (auto& run : runs) run->push(2);
    if (i % 3 == 0) runs.erase(runs.begin() + static_cast<int64_t>(runs.size()) / 2);
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    ASSERT_TRUE(wait_for([&] { return runs[i]->ready_len() > 3; }));
    EXPECT_TRUE(runs[i]->failure().ok());
  }
}

}  // namespace
}  // namespace tailrace
