// PFX-1: a prefix-cache hit leaves the answer as it was, for every length around blocks and chunks, and covers at most
// prompt_len - 1 tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ids/same_answer.h"
#include "support/checkpoint_writer.h"
#include "support/request_sets.h"

namespace tailrace {
namespace {

constexpr int kBlock = 16, kChunk = 64;

class Pfx1 : public ::testing::Test {
 protected:
  // F32 weights, so that a KV rounding that flips is the only difference that paths may show.
  static void SetUpTestSuite() {
    dir_ = new TempDir();
    write_random_checkpoint(dir_->path(), tiny_llama_config(), 21, false);
  }
  static void TearDownTestSuite() { delete dir_; }

  static EngineSetup setup() {
    EngineSetup setup = test_setup(dir_->path());
    setup.limits.block_size = kBlock;
    setup.limits.chunk_size = kChunk;
    return setup;
  }

  static void expect_same(const Request& request, const Answer& cold, TestEngine& warm) {
    const auto run = [&](const std::vector<Request>& requests) { return warm.run(requests); };
    const SameAnswerOptions options{.tolerance = 1e-3};
    const Comparison result = same_answer({request}, {cold}, run, options);
    EXPECT_EQ(result.verdict(options), "");
    EXPECT_LE(result.max_logprob_error, 1e-3);
  }

  static TempDir* dir_;
};
TempDir* Pfx1::dir_ = nullptr;

TEST_F(Pfx1, the_second_identical_request_equals_the_first) {
  TestEngine engine(setup());
  for (int length : {kBlock - 1, kBlock, kBlock + 1, 2 * kBlock, 2 * kBlock + 1, kChunk, kChunk + 1}) {
    SCOPED_TRACE("prompt of " + std::to_string(length));
    engine.flush_cache();
    const Request request = greedy_request(random_prompt(length, length), 32);
    const Answer cold = engine.wait(*engine.submit(request));
    EXPECT_EQ(cold.cached_len, 0);
    for (int round = 0; round < 2; ++round) {
      expect_same(request, cold, engine);
      const Answer warm = engine.wait(*engine.submit(request));
      EXPECT_EQ(warm.cached_len, (length - 1) / kBlock * kBlock);
    }
  }
}

TEST_F(Pfx1, prompts_that_share_k_tokens) {
  TestEngine engine(setup());
  const std::vector<TokenId> first = random_prompt(1, 2 * kBlock + 5);
  for (int shared = 0; shared <= 2 * kBlock; ++shared) {
    SCOPED_TRACE("sharing " + std::to_string(shared));
    std::vector<TokenId> second = random_prompt(100 + shared, 2 * kBlock + 9);
    std::copy_n(first.begin(), shared, second.begin());
    if (second[shared] == first[shared]) second[shared] = first[shared] % 250 + 3;
    const Request request = greedy_request(second, 8);
    engine.flush_cache();
    const Answer cold = engine.wait(*engine.submit(request));
    engine.flush_cache();
    engine.wait(*engine.submit(greedy_request(first, 1)));
    const Answer warm = engine.wait(*engine.submit(request));
    EXPECT_EQ(warm.cached_len, shared / kBlock * kBlock);
    expect_same(request, cold, engine);
  }
}

TEST_F(Pfx1, another_salt_shares_nothing) {
  TestEngine engine(setup());
  Request request = greedy_request(random_prompt(9, 3 * kBlock), 4);
  engine.wait(*engine.submit(request));
  request.cache_salt = "tenant";
  EXPECT_EQ(engine.wait(*engine.submit(request)).cached_len, 0);
  EXPECT_EQ(engine.wait(*engine.submit(request)).cached_len, 2 * kBlock);
}

TEST_F(Pfx1, generated_tokens_enter_the_cache_as_far_as_their_kv_was_written) {
  TestEngine engine(setup());
  for (int num_generated : {1, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock}) {
    engine.flush_cache();
    Request request = greedy_request(random_prompt(77, kBlock), num_generated);
    const Answer answer = engine.wait(*engine.submit(request));
    engine.wait_idle();
    Request next = request;
    next.prompt_ids.insert(next.prompt_ids.end(), answer.ids.begin(), answer.ids.end());
    const std::vector<TokenId> more = random_prompt(78, 20);
    next.prompt_ids.insert(next.prompt_ids.end(), more.begin(), more.end());
    next.max_tokens = 16;
    const Answer warm = engine.wait(*engine.submit(next));
    // The last token that was sampled has no KV.
    EXPECT_EQ(warm.cached_len, (kBlock + num_generated - 1) / kBlock * kBlock);
    engine.flush_cache();
    const Answer cold = engine.wait(*engine.submit(next));
    engine.flush_cache();
    engine.wait(*engine.submit(request));
    expect_same(next, cold, engine);
  }
}

TEST_F(Pfx1, a_nearly_full_pool_under_shuffled_shared_prefixes) {
  std::vector<Request> prompts;
  for (int i = 0; i < 32; ++i) {
    std::vector<TokenId> ids = random_prompt(i % 4, 40 + 16 * (i % 4));
    const std::vector<TokenId> tail = random_prompt(200 + i, 1 + i);
    ids.insert(ids.end(), tail.begin(), tail.end());
    prompts.push_back(greedy_request(ids, 6));
  }
  EngineSetup roomy = setup();
  roomy.limits.prefix_cache = false;
  TestEngine idle(roomy);
  const std::vector<Answer> cold = run_alone(idle, prompts);

  EngineSetup tight = setup();
  tight.limits.context_length = 160;
  tight.limits.max_total_tokens = 192;
  TestEngine engine(tight);
  std::mt19937_64 random(6);
  std::vector<size_t> order;
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < prompts.size(); ++i) order.push_back(i);
  }
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Request> requests;
  std::vector<Answer> reference;
  for (size_t i : order) {
    requests.push_back(prompts[i]);
    reference.push_back(cold[i]);
  }
  const auto run = [&](const std::vector<Request>& some) { return engine.run(some); };
  const SameAnswerOptions options{.tolerance = 1e-3};
  EXPECT_EQ(same_answer(requests, reference, run, options).verdict(options), "");
  EXPECT_GT(engine.status().cached_tokens, 0u);
}

}  // namespace
}  // namespace tailrace
