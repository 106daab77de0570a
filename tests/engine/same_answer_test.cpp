// Contract 4: the same answer on every path, on random checkpoints of six architectures, gpt-oss and Gemma 4 with experts in
// bf16 and in 4 bits, Qwen3.5 with recurrent states; and on the goldens of their other published formats. The reference is
// each request alone, in one chunk, without cache and overlap.
#include "ids/same_answer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/checkpoint_writer.h"
#include "support/golden.h"
#include "support/request_sets.h"

namespace tailrace {
namespace {

constexpr double kTolerance = 0.005;  // of a logit; the logits of these checkpoints spread by about 4
// 4-bit experts meet activations in int8: another order of sums (mixed fold) changes which way some of them round. Seen
// 0.024; with recurrent states, which carry that on, and a head in NVFP4 0.049, where 0.06 is the bound.
constexpr double kInt8Tolerance = 0.03;
// In FP8 a key or value that lies on a tie moves by a sixteenth where the sums before it differ in the last bit. Seen
// 0.011.
constexpr double kFp8KvTolerance = 0.03;
constexpr int32_t kCheckpointInterval = 32;  // of recurrent states, in tokens

// One architecture's checkpoint and its reference answers, made once.
class Subject {
 public:
  static constexpr std::string_view kFp8Kv = "_fp8_kv";  // behind a name: with --kv-cache-dtype fp8
  static constexpr std::string_view kStored[] = {"qwen3_5_moe_fp8", "qwen3_5_moe_nvfp4", "gemma4_fp8"};  // goldens

  explicit Subject(std::string name) : fp8_kv_(name.ends_with(kFp8Kv)), path_(dir_.path()) {
    if (fp8_kv_) name.resize(name.size() - kFp8Kv.size());
    if (std::ranges::find(kStored, name) != std::end(kStored)) {
      path_ = load_golden(name).directory;
    } else {
      write(name);
    }
    TestEngine engine(reference_setup());
    plain_answers = run_alone(engine, plain);
    varied_answers = run_alone(engine, varied);
    sampled_answers = run_alone(engine, sampled);
  }

  static Subject& get(const std::string& name) {
    static std::map<std::string, std::unique_ptr<Subject>> subjects;
    auto& subject = subjects[name];
    if (!subject) subject = std::make_unique<Subject>(name);
    return *subject;
  }

  EngineSetup setup() const {
    EngineSetup setup = test_setup(path_);
    if (fp8_kv_) setup.kv_format = Format::kF8E4M3;
    setup.limits.checkpoint_interval = kCheckpointInterval;
    setup.limits.checkpoint_min_tokens = 1;
    return setup;
  }
  EngineSetup reference_setup() const {
    EngineSetup setup = this->setup();
    setup.limits.chunk_size = 4096;
    setup.limits.prefix_cache = false;
    setup.engine.overlap = false;
    setup.backend_options.kv_splits = 1;
    return setup;
  }

  std::vector<Request> plain = plain_requests(), varied = varied_requests(), sampled = sampled_requests();
  std::vector<Answer> plain_answers, varied_answers, sampled_answers;

 private:
  void write(const std::string& name) {
    nlohmann::json config = name == "gemma3" ? tiny_gemma3_config() : tiny_llama_config();
    if (name == "qwen3") config = tiny_qwen3_config();
    if (name == "qwen3_5") config = tiny_qwen35_config();
    if (name.starts_with("gpt_oss")) config = tiny_gpt_oss_config(name == "gpt_oss_mxfp4");
    if (name.starts_with("gemma4")) config = tiny_gemma4_config(name == "gemma4_nvfp4");
    write_random_checkpoint(dir_.path(), config, 11);
  }

  TempDir dir_;
  bool fp8_kv_;
  std::string path_;  // dir_'s, or a golden's
};

Variant all_at_once(TestEngine& engine) {
  return [&](const std::vector<Request>& requests) { return engine.run(requests); };
}
Variant mixed_arrivals(TestEngine& engine, int32_t long_len = 600) {
  return [&engine, long_len](const std::vector<Request>& requests) { return run_mixed(engine, requests, long_len); };
}

class SameAnswer : public ::testing::TestWithParam<const char*> {
 protected:
  Subject& subject() { return Subject::get(GetParam()); }

  void expect_same(const std::vector<Request>& requests, const std::vector<Answer>& reference, const Variant& variant,
                   bool sampled = false) {
    const std::string name = GetParam();
    const SameAnswerOptions options{.tolerance = name.ends_with("fp4")             ? kInt8Tolerance
                                                 : name.ends_with(Subject::kFp8Kv) ? kFp8KvTolerance
                                                                                   : kTolerance,
                                    .sampled = sampled};
    const Comparison result = same_answer(requests, reference, variant, options);
    EXPECT_EQ(result.verdict(options), "");
    forced_ += result.forced;
    compared_ += result.compared;
    max_error_ = std::max(max_error_, result.max_logprob_error);
  }
  // With arrivals until a prompt has met decoding rows, which is a race with the engine's thread.
  void expect_same_mixed(TestEngine& engine, const std::vector<Request>& requests,
                         const std::vector<Answer>& reference, int32_t long_len = 600) {
    for (int tries = 0; tries < 10 && engine.status().mixed_steps == 0; ++tries) {
      expect_same(requests, reference, mixed_arrivals(engine, long_len));
    }
    EXPECT_GT(engine.status().mixed_steps, 0u);
  }
  void TearDown() override {
    if (compared_ == 0) return;
    RecordProperty("forced_share", std::to_string(static_cast<double>(forced_) / compared_));
    std::printf("    %d tokens compared, %d forced, largest logprob difference %.5f\n", compared_, forced_, max_error_);
  }

 private:
  int forced_ = 0, compared_ = 0;
  double max_error_ = 0;
};

TEST_P(SameAnswer, alone_twice_is_equal_to_the_bit) {
  TestEngine engine(subject().reference_setup());
  const std::vector<Answer> again = run_alone(engine, subject().plain);
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].ids, subject().plain_answers[i].ids);
    EXPECT_EQ(again[i].logprobs, subject().plain_answers[i].logprobs);
  }
}

TEST_P(SameAnswer, batched) {
  TestEngine engine(subject().setup());
  expect_same(subject().plain, subject().plain_answers, all_at_once(engine));
  expect_same(subject().varied, subject().varied_answers, all_at_once(engine));
}

TEST_P(SameAnswer, sampled_alone_and_among_others) {
  TestEngine engine(subject().setup());
  expect_same(subject().sampled, subject().sampled_answers, all_at_once(engine), true);
  expect_same(subject().sampled, subject().sampled_answers, mixed_arrivals(engine), true);
}

TEST_P(SameAnswer, chunked_while_others_decode) {
  for (int32_t chunk : {1, 7, 16, 23, 24, 25, 64, 4096}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    EngineSetup setup = subject().setup();
    setup.limits.chunk_size = chunk;
    setup.limits.prefix_cache = false;
    TestEngine engine(setup);
    // A chunk of one token needs a step per prompt token: a shorter prompt does.
    expect_same_mixed(engine, subject().varied, subject().varied_answers, chunk == 1 ? 100 : 600);
  }
}

TEST_P(SameAnswer, mixed_split_fold_and_off) {
  for (MixedMode mode : {MixedMode::kSplit, MixedMode::kFold, MixedMode::kOff}) {
    SCOPED_TRACE("mode " + std::to_string(static_cast<int>(mode)));
    EngineSetup setup = subject().setup();
    setup.mixed = mode;
    setup.limits.prefix_cache = false;
    TestEngine engine(setup);
    if (mode != MixedMode::kOff) {
      expect_same_mixed(engine, subject().plain, subject().plain_answers);
      continue;
    }
    expect_same(subject().plain, subject().plain_answers, mixed_arrivals(engine));
    EXPECT_EQ(engine.status().mixed_steps, 0u);
  }
}

TEST_P(SameAnswer, overlap_on_and_off) {
  for (bool overlap : {true, false}) {
    EngineSetup setup = subject().setup();
    setup.engine.overlap = overlap;
    TestEngine engine(setup);
    expect_same(subject().varied, subject().varied_answers, mixed_arrivals(engine));
  }
}

TEST_P(SameAnswer, kv_splits_one_three_and_chosen) {
  for (int splits : {1, 3, 0}) {
    SCOPED_TRACE("splits " + std::to_string(splits));
    EngineSetup setup = subject().setup();
    setup.backend_options.kv_splits = splits;
    TestEngine engine(setup);
    expect_same(subject().plain, subject().plain_answers, all_at_once(engine));
  }
}

TEST_P(SameAnswer, cached) {
  TestEngine engine(subject().setup());
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    expect_same(subject().plain, subject().plain_answers, mixed_arrivals(engine));
  }
  EXPECT_GT(engine.status().cached_tokens, 0u);
}

// Prompts that share a prefix of each length around blocks and windows (24 and 32 keys) with one that ran before.
TEST_P(SameAnswer, cached_at_each_boundary_length) {
  const std::vector<int32_t> shared = {15, 16, 17, 23, 24, 25, 31, 32, 33, 39, 40, 41, 47, 48, 49, 63, 64, 65, 96};
  std::vector<Request> requests;
  for (const int32_t length : shared) {
    std::vector<TokenId> ids = random_prompt(600 + length, length);
    const std::vector<TokenId> rest = random_prompt(900 + length, 9);
    ids.insert(ids.end(), rest.begin(), rest.end());
    requests.push_back(greedy_request(ids, 8));
  }
  TestEngine alone(subject().reference_setup());
  const std::vector<Answer> reference = run_alone(alone, requests);
  TestEngine engine(subject().setup());
  expect_same(requests, reference, [&](const std::vector<Request>& asked) {
    std::vector<Answer> answers;
    for (size_t i = 0; i < asked.size(); ++i) {
      engine.flush_cache();
      const auto& ids = asked[i].prompt_ids;
      engine.wait(*engine.submit(greedy_request({ids.begin(), ids.begin() + shared[i]}, 1)));
      engine.wait_idle();
      const uint64_t before = engine.status().cached_tokens;
      answers.push_back(engine.wait(*engine.submit(asked[i])));
      // A recurrent model's checkpoints lie at multiples, and at the last block that the first prompt could match.
      const bool recurrent = std::string(GetParam()).starts_with("qwen3_5");
      const int32_t multiple = shared[i] / kCheckpointInterval * kCheckpointInterval;
      const int32_t checkpoint = std::max(multiple, (shared[i] - 1) / 16 * 16);
      const int32_t expected = recurrent ? checkpoint : shared[i] / 16 * 16;
      EXPECT_EQ(engine.status().cached_tokens - before, static_cast<uint64_t>(expected)) << shared[i];
    }
    return answers;
  });
}

TEST_P(SameAnswer, preempted_and_resumed) {
  Subject& s = subject();
  std::vector<Request> requests;
  for (int i = 0; i < 10; ++i) requests.push_back(greedy_request(random_prompt(500 + i, 3 + 4 * i), 110));
  TestEngine alone(s.reference_setup());
  const std::vector<Answer> reference = run_alone(alone, requests);
  for (bool cache : {true, false}) {
    SCOPED_TRACE(cache ? "cache on" : "cache off");
    EngineSetup setup = s.setup();
    setup.limits.max_total_tokens = 320;
    setup.limits.prefix_cache = cache;
    TestEngine engine(setup);
    expect_same(requests, reference, all_at_once(engine));
    EXPECT_GT(engine.status().preemptions, 0u);
  }
}

TEST_P(SameAnswer, on_streams_with_random_delays) {
  EngineSetup setup = subject().setup();
  setup.device = {.thread_per_stream = true, .delay_seed = 5, .max_delay_us = 100};
  setup.limits.max_total_tokens = 640;
  TestEngine engine(setup);
  expect_same(subject().varied, subject().varied_answers, all_at_once(engine));
}

INSTANTIATE_TEST_SUITE_P(Models, SameAnswer, ::testing::Values("llama", "qwen3", "gemma3", "gpt_oss", "gpt_oss_mxfp4",
                                           "gemma4", "gemma4_nvfp4", "qwen3_5", "llama_fp8_kv", "gemma3_fp8_kv",
                                           "gpt_oss_fp8_kv", "gemma4_fp8_kv", "qwen3_5_fp8_kv", "qwen3_5_moe_fp8",
                                           "qwen3_5_moe_nvfp4", "gemma4_fp8"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tailrace
