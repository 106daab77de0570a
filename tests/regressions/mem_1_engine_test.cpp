// MEM-1, short form: a pool of 64 blocks under multi-turn conversations with aborts and preemptions. Answers stay exact, every
// block is accounted for, and memory is flat.
#include <gtest/gtest.h>

#include <future>
#include <random>

#include "ids/same_answer.h"
#include "support/checkpoint_writer.h"
#include "support/request_sets.h"

namespace tailrace {
namespace {

constexpr int kConversations = 8, kTurns = 3;

void expect_conserved(const EngineStatus& status) {
  for (int g = 0; g < status.num_kv_groups; ++g) {
    EXPECT_EQ(status.kv[g].free + status.kv[g].cached + status.kv[g].owned, status.kv[g].total);
  }
}

// The requests of one turn: each conversation's history, with the replies of the reference, and a new question.
std::vector<Request> next_turn(const std::vector<Request>& last, const std::vector<Answer>& replies, int turn) {
  std::vector<Request> requests = last;
  for (size_t c = 0; c < requests.size(); ++c) {
    auto& ids = requests[c].prompt_ids;
    if (!replies.empty()) ids.insert(ids.end(), replies[c].ids.begin(), replies[c].ids.end());
    const std::vector<TokenId> question = random_prompt(turn * 100 + c, 3 + static_cast<int>(c) * 2);
    ids.insert(ids.end(), question.begin(), question.end());
  }
  return requests;
}

// Runs `requests` beside three copies of some of them that are cancelled on the way.
std::vector<Answer> run_with_aborts(TestEngine& engine, const std::vector<Request>& requests, std::mt19937_64& random) {
  std::vector<std::shared_ptr<const Request>> open, aborted;
  for (int i = 0; i < 3; ++i) aborted.push_back(engine.submit(requests[random() % requests.size()]));
  for (const Request& request : requests) open.push_back(engine.submit(request));
  for (const auto& request : aborted) {
    engine.wait(*request, static_cast<int>(random() % 40));
    engine.cancel(*request);
  }
  std::vector<Answer> answers;
  for (const auto& request : open) answers.push_back(engine.wait(*request));
  return answers;
}

// Runs all of `requests` to their ends. All but the first arrive together, with its first token, and nobody leaves: how the machine
// schedules threads does not decide how full the pool gets.
std::vector<Answer> run_together(TestEngine& engine, const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<const Request>> open(requests.size());
  std::promise<void> all_submitted;
  open[0] = engine.submit(requests[0], [&] {
    for (size_t i = 1; i < requests.size(); ++i) open[i] = engine.submit(requests[i]);
    all_submitted.set_value();
  });
  all_submitted.get_future().wait();
  std::vector<Answer> answers;
  for (const auto& request : open) answers.push_back(engine.wait(*request));
  return answers;
}

TEST(Mem1, conversations_on_a_nearly_full_pool) {
  for (const nlohmann::json& config : {tiny_llama_config(), tiny_gemma3_config()}) {
    TempDir dir;
    write_random_checkpoint(dir.path(), config, 71);
    EngineSetup roomy = test_setup(dir.path());
    roomy.limits.prefix_cache = false;
    TestEngine reference(roomy);
    EngineSetup tight = test_setup(dir.path());
    tight.limits.block_size = 8;
    tight.limits.max_total_tokens = 64 * 8;
    tight.limits.chunk_size = 32;
    TestEngine engine(tight);
    std::mt19937_64 random(9);
    std::vector<Request> turn(kConversations, greedy_request({}, 110));
    std::vector<Answer> replies;
    int64_t device_bytes = 0;
    for (int t = 0; t < kTurns; ++t) {
      SCOPED_TRACE("turn " + std::to_string(t));
      turn = next_turn(turn, replies, t);
      replies = run_alone(reference, turn);
      const Variant with_aborts = [&](const std::vector<Request>& requests) {
        return run_with_aborts(engine, requests, random);
      };
      const Variant together = [&](const std::vector<Request>& requests) { return run_together(engine, requests); };
      const SameAnswerOptions options{.tolerance = 0.005};
      EXPECT_EQ(same_answer(turn, replies, together, options).verdict(options), "");
      EXPECT_EQ(same_answer(turn, replies, with_aborts, options).verdict(options), "");
      engine.wait_idle();
      expect_conserved(engine.status());
      if (t == 0) device_bytes = engine.status().device_bytes;
      EXPECT_EQ(engine.status().device_bytes, device_bytes);
    }
    EXPECT_GT(engine.status().preemptions, 0u);
    engine.flush_cache();
    for (int g = 0; g < engine.status().num_kv_groups; ++g) {
      EXPECT_EQ(engine.status().kv[g].free, engine.status().kv[g].total);
    }
  }
}

TEST(Mem1, top_logprobs_of_20_on_eight_long_prompts_at_once) {
  TempDir dir;
  write_random_checkpoint(dir.path(), tiny_llama_config(), 72);
  TestEngine engine(test_setup(dir.path()));
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(greedy_request(random_prompt(i, 700), 50, kMaxTopLogprobs));
  for (const Answer& answer : engine.run(requests)) {
    EXPECT_EQ(answer.top.size(), 50u);
    for (const auto& top : answer.top) EXPECT_EQ(top.size(), static_cast<size_t>(kMaxTopLogprobs));
  }
  EXPECT_EQ(engine.status().device_alloc_after_ready, 0u);
}

}  // namespace
}  // namespace tailrace
