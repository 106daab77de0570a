// OVL-1: rows and blocks are reused only when no launched step uses them. Thousands of short requests on a scripted checkpoint:
// a foreign, missing or additional token is a row mix-up.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"
#include "support/scripted_checkpoint.h"

namespace tailrace {
namespace {

constexpr Scripts kScripts{.num_scripts = 4, .length = 120};

// A request that starts somewhere in a script, and what it must be given.
struct Case {
  Request request;
  std::vector<TokenId> expected;
  FinishReason finish = FinishReason::kStop;
  int cancel_after = -1;  // tokens
};

Case make_case(std::mt19937_64& random, int longest) {
  Case c;
  const int script = static_cast<int>(random() % kScripts.num_scripts);
  const int skip = static_cast<int>(random() % (longest > kScripts.length ? 8 : kScripts.length + 1));
  c.request.prompt_ids.assign(random() % 30, Scripts::kFiller);
  c.request.prompt_ids.push_back(kScripts.trigger(script) + skip);
  c.request.max_tokens = 1 + static_cast<int>(random() % longest);
  c.request.stop_token_ids = {Scripts::kEos};
  c.request.sampling.temperature = 0;
  const std::vector<TokenId> ids = kScripts.script(script);
  c.expected.assign(ids.begin() + skip, ids.end());
  c.expected.push_back(Scripts::kEos);
  if (c.request.max_tokens < static_cast<int>(c.expected.size())) {
    c.expected.resize(c.request.max_tokens);
    c.finish = FinishReason::kLength;
  } else if (random() % 4 == 0) {  // a stop token in mid-script
    const size_t at = random() % c.expected.size();
    c.request.stop_token_ids.push_back(c.expected[at]);
    c.expected.resize(at + 1);
  }
  if (random() % 8 == 0) c.cancel_after = static_cast<int>(random() % 10);
  return c;
}

std::string judge(const Case& c, const Answer& answer) {
  const bool prefix = answer.ids.size() <= c.expected.size() &&
                      std::equal(answer.ids.begin(), answer.ids.end(), c.expected.begin());
  if (!prefix) return "tokens that are not its script's";
  if (c.cancel_after >= 0 && answer.finish == FinishReason::kCancelled) return "";
  if (answer.ids.size() != c.expected.size()) return "an answer that is too short";
  return answer.finish == c.finish ? "" : "another finish reason";
}

// Runs `count` requests with at most kStreams open, of up to `longest` tokens; returns what went wrong first.
std::string run_cases(TestEngine& engine, uint64_t seed, int count, int longest) {
  constexpr size_t kStreams = 24;
  std::mt19937_64 random(seed);
  std::vector<std::pair<Case, std::shared_ptr<const Request>>> open;
  std::string wrong;
  for (int started = 0; started < count || !open.empty();) {
    while (started < count && open.size() < kStreams) {
      Case c = make_case(random, longest);
      auto request = engine.submit(c.request);
      open.emplace_back(std::move(c), std::move(request));
      ++started;
    }
    const size_t i = random() % open.size();
    const auto& [c, request] = open[i];
    if (c.cancel_after >= 0) {
      engine.wait(*request, c.cancel_after);
      engine.cancel(*request);
    }
    const Answer& answer = engine.wait(*request);
    if (!answer.finished) return "no end";
    if (wrong.empty()) wrong = judge(c, answer);
    open.erase(open.begin() + i);
  }
  return wrong;
}

class Ovl1 : public ::testing::Test {
 protected:
  void SetUp() override { write_scripted_checkpoint(dir_.path(), kScripts); }
  EngineSetup setup(bool overlap, uint64_t delay_seed) const {
    EngineSetup setup = test_setup(dir_.path());
    setup.limits.context_length = 256;
    setup.limits.max_total_tokens = 512;  // less than 16 rows need
    setup.limits.chunk_size = 16;
    setup.engine.overlap = overlap;
    setup.device = {.thread_per_stream = true, .delay_seed = delay_seed, .max_delay_us = 30};
    return setup;
  }
  TempDir dir_;
};

TEST_F(Ovl1, no_foreign_token_in_thousands_of_requests) {
  for (bool overlap : {true, false}) {
    TestEngine engine(setup(overlap, 7));
    EXPECT_EQ(run_cases(engine, 1, overlap ? 1500 : 300, 40), "");
    engine.flush_cache();
    EXPECT_EQ(engine.status().kv[0].free, engine.status().kv[0].total);
  }
}

TEST_F(Ovl1, preempted_rows_go_on_with_the_tokens_delivered) {
  EngineSetup tight = setup(true, 8);
  tight.limits.max_total_tokens = 288;
  TestEngine engine(tight);
  EXPECT_EQ(run_cases(engine, 2, 100, 200), "");
  EXPECT_GT(engine.status().preemptions, 0u);
  engine.flush_cache();
  EXPECT_EQ(engine.status().kv[0].free, engine.status().kv[0].total);
}

TEST_F(Ovl1, one_token_answers_in_bulk) {
  TestEngine engine(setup(true, 9));
  std::vector<Request> requests;
  for (int i = 0; i < 500; ++i) {
    const int script = i % kScripts.num_scripts;
    const bool eos_first = i % 2 == 0;
    Request request = greedy_request({kScripts.trigger(script) + (eos_first ? kScripts.length : i % 30)}, 1, -1);
    request.stop_token_ids = {Scripts::kEos};
    requests.push_back(request);
  }
  const std::vector<Answer> answers = engine.run(requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    const TokenId last = requests[i].prompt_ids.back();
    EXPECT_EQ(answers[i].ids, std::vector<TokenId>{i % 2 == 0 ? Scripts::kEos : last + 1});
    EXPECT_EQ(answers[i].finish, i % 2 == 0 ? FinishReason::kStop : FinishReason::kLength);
  }
}

TEST(Ovl1Judge, sees_a_foreign_a_missing_and_an_additional_token) {
  std::mt19937_64 random(4);
  Case c = make_case(random, 40);
  while (c.expected.size() < 5) c = make_case(random, 40);
  c.cancel_after = -1;
  Answer answer{.ids = c.expected, .finished = true, .finish = c.finish};
  EXPECT_EQ(judge(c, answer), "");
  answer.ids[3]++;
  EXPECT_NE(judge(c, answer), "");
  answer.ids = c.expected;
  answer.ids.pop_back();
  EXPECT_NE(judge(c, answer), "");
  answer.ids = c.expected;
  answer.ids.push_back(Scripts::kEos);
  EXPECT_NE(judge(c, answer), "");
}

}  // namespace
}  // namespace tailrace
