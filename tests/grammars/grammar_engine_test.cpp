// Random weights under grammars: whatever they would say, answers are valid; rows without a grammar never notice.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "base/test_fault.h"
#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"
#include "support/small_tokenizers.h"
#include "text/grammar.h"

namespace tailrace {
namespace {

constexpr TokenId kEos = 257;  // of small_byte_level
constexpr const char* kSchema =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":6},"n":{"type":"integer","minimum":-20,)"
    R"("maximum":999},"tags":{"type":"array","items":{"enum":["red","blue",null]},"maxItems":3}},)"
    R"("required":["name","n","tags"],"additionalProperties":false})";

// Another rule, whose masks take `delay`.
class Slow : public TokenConstraint {
 public:
  Slow(std::shared_ptr<const TokenConstraint> rule, std::chrono::microseconds delay) : rule_(std::move(rule)), delay_(delay) {}
  Expected<std::unique_ptr<ConstraintRun>> start() const override {
    auto run = rule_->start();
    if (!run) return run;
    return std::make_unique<Run>(std::move(*run), delay_);
  }

 private:
  class Run : public ConstraintRun {
   public:
    Run(std::unique_ptr<ConstraintRun> run, std::chrono::microseconds delay) : run_(std::move(run)), delay_(delay) {}
    Status next(std::span<const int32_t> tokens, std::span<uint32_t> mask) override {
      std::this_thread::sleep_for(delay_);
      return run_->next(tokens, mask);
    }

   private:
    const std::unique_ptr<ConstraintRun> run_;
    const std::chrono::microseconds delay_;
  };
  const std::shared_ptr<const TokenConstraint> rule_;
  const std::chrono::microseconds delay_;
};

class GrammarEngine : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    nlohmann::json config = tiny_llama_config();
    config["vocab_size"] = 320;  // more rows than ids
    write_random_checkpoint(dir_.path(), config, 5);
    tokenizer_ = *Tokenizer::from_gguf(small_byte_level());
    grammars_ = *Grammars::create(tokenizer_, std::vector{kEos}, {});
    schema_ = *grammars_->compile({.kind = GrammarKind::kJsonSchema, .body = kSchema});
  }
  EngineSetup setup() const {
    EngineSetup setup = test_setup(dir_.path(), GetParam());
    setup.real_vocab = tokenizer_->vocab_size();
    setup.mask_threads = 2;
    return setup;
  }
  static Request plain(uint64_t seed) { return greedy_request(random_prompt(seed, 20 + static_cast<int>(seed % 7) * 11), 40); }
  Request constrained(uint64_t seed, std::shared_ptr<const TokenConstraint> rule) const {
    Request request = plain(seed);
    request.max_tokens = 900;
    request.stop_token_ids = {kEos};
    request.sampling.temperature = 1.0f;
    request.sampling.seed = seed;
    request.constraint = std::move(rule);
    return request;
  }
  std::string text_of(const Answer& answer) const {
    std::string text;
    for (TokenId id : answer.ids) text += tokenizer_->token_bytes(id);
    return answer.finish == FinishReason::kStop ? text.substr(0, text.size() - tokenizer_->token_bytes(kEos).size()) : text;
  }
  // "" or what is wrong with an answer under the schema.
  std::string fault_of(const Answer& answer) const {
    if (answer.finish != FinishReason::kStop) return "not stopped: " + text_of(answer) + " " + answer.error;
    const std::string text = text_of(answer);
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object() || json.size() != 3) return "not an object of three: " + text;
    if (!json.contains("name") || !json["name"].is_string()) return "name: " + text;
    if (!json.contains("n") || !json["n"].is_number_integer() || json["n"] < -20 || json["n"] > 999) return "n: " + text;
    if (!json.contains("tags") || !json["tags"].is_array() || json["tags"].size() > 3) return "tags: " + text;
    for (const auto& tag : json["tags"]) {
      if (!(tag.is_null() || tag == "red" || tag == "blue")) return "a tag: " + text;
    }
    return "";
  }
  // Constrained and plain ones at once: each of the first is valid, and the latter are as `alone` has them.
  void run_mixed(TestEngine& engine, std::shared_ptr<const TokenConstraint> rule, int count,
                 const std::vector<Answer>& alone) {
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i) {
      requests.push_back(constrained(1000 + i, rule));
      if (i < static_cast<int>(alone.size())) requests.push_back(plain(i));
    }
    const std::vector<Answer> answers = engine.run(requests);
    size_t at = 0;
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(fault_of(answers[at++]), "") << i;
      if (i < static_cast<int>(alone.size())) EXPECT_EQ(answers[at++].ids, alone[i].ids) << i;
    }
  }
  std::vector<Answer> answers_alone(int count) {
    TestEngine engine(setup());
    std::vector<Answer> out;
    for (int i = 0; i < count; ++i) out.push_back(engine.run({plain(i)})[0]);
    return out;
  }

  TempDir dir_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<const Grammars> grammars_;
  std::shared_ptr<const TokenConstraint> schema_;
};

TEST_P(GrammarEngine, answers_are_valid_beside_rows_that_never_notice) {
  const std::vector<Answer> alone = answers_alone(12);
  TestEngine engine(setup());
  run_mixed(engine, schema_, 40, alone);
  EXPECT_GT(engine.status().mixed_steps, 0u);
  EXPECT_GT(engine.status().masks, 40u);
}

TEST_P(GrammarEngine, masks_that_come_late_cost_nobody_else_and_change_nothing) {
  const std::vector<Answer> alone = answers_alone(6);
  TestEngine engine(setup());
  run_mixed(engine, std::make_shared<Slow>(schema_, std::chrono::microseconds(3000)), 6, alone);
  engine.wait_idle();
  EXPECT_GT(engine.status().late_masks, 0u);
  EXPECT_LE(engine.status().spared_rows, 6u);  // late rows are not among them
}

TEST_P(GrammarEngine, without_the_guard_a_row_is_sampled_under_an_older_mask) {
  if (!kRacingFaults) GTEST_SKIP() << "this fault is a data race";
  const ScopedTestFault taken_out(Fault::kStaleMask);
  TestEngine engine(setup());
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(constrained(i, std::make_shared<Slow>(schema_, std::chrono::microseconds(3000))));
  int wrong = 0;
  for (const Answer& answer : engine.run(requests)) wrong += fault_of(answer) != "";
  EXPECT_GT(wrong, 0);
}

TEST_P(GrammarEngine, preempted_and_resumed_with_and_without_the_prefix_cache) {
  const auto pairs = *grammars_->compile({.kind = GrammarKind::kRegex, .body = "([ab][cd]){40,55}"});
  for (const bool cache : {true, false}) {
    EngineSetup tight = setup();
    tight.limits.max_total_tokens = 320;
    tight.limits.prefix_cache = cache;
    TestEngine engine(tight);
    std::vector<Request> requests;
    for (int i = 0; i < 10; ++i) {
      const bool odd = i % 2 == 1;  // the others are there to grow
      requests.push_back(odd ? constrained(i, pairs) : plain(i));
      requests.back().prompt_ids = random_prompt(500 + i, 3 + 4 * i);
      requests.back().max_tokens = odd ? 120 : 110;
    }
    const std::regex expected("([ab][cd]){40,55}");
    const std::vector<Answer> answers = engine.run(requests);
    for (size_t i = 1; i < answers.size(); i += 2) {
      EXPECT_TRUE(std::regex_match(text_of(answers[i]), expected)) << text_of(answers[i]);
    }
    engine.wait_idle();
    EXPECT_GT(engine.status().preemptions + engine.status().late_masks, 0u);  // a late mask takes the same way
  }
}

TEST_P(GrammarEngine, the_same_seed_gives_the_same_answer_whatever_the_masks_take) {
  TestEngine engine(setup());
  const Answer fast = engine.run({constrained(3, schema_)})[0];
  const Answer slow = engine.run({constrained(3, std::make_shared<Slow>(schema_, std::chrono::microseconds(2000)))})[0];
  EXPECT_EQ(fast.ids, slow.ids);
}

TEST_P(GrammarEngine, min_tokens_goes_as_far_as_the_grammar_does) {
  TestEngine engine(setup());
  const auto letters = *grammars_->compile({.kind = GrammarKind::kRegex, .body = "[ab]{1,12}"});
  for (const int min_tokens : {0, 8, 12, 30}) {
    Request request = constrained(9, letters);
    request.min_tokens = min_tokens;
    const Answer answer = engine.run({request})[0];
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_GE(static_cast<int>(answer.ids.size()) - 1, std::min(min_tokens, 12));
    EXPECT_LE(static_cast<int>(answer.ids.size()) - 1, 12);
  }
}

TEST_P(GrammarEngine, a_cancelled_answer_and_one_that_is_cut_leave_nothing_behind) {
  TestEngine engine(setup());
  const auto endless = *grammars_->compile({.kind = GrammarKind::kRegex, .body = "a*b"});
  Request cut = constrained(1, endless);
  cut.max_tokens = 3;
  cut.sampling.logit_bias = {{'b', -100.0f}};
  const Answer answer = engine.run({cut})[0];
  EXPECT_EQ(answer.finish, FinishReason::kLength);
  EXPECT_EQ(text_of(answer), "aaa");
  cut.max_tokens = 900;
  const auto submitted = engine.submit(cut);
  engine.wait(*submitted, 2);
  engine.cancel(*submitted);
  EXPECT_EQ(engine.wait(*submitted).finish, FinishReason::kCancelled);
  engine.wait_idle();
  EXPECT_EQ(fault_of(engine.run({constrained(2, schema_)})[0]), "");
}

// A rule that fails on its way: the answer ends with an error that says so, others go on.
TEST_P(GrammarEngine, a_rule_that_fails_ends_its_answer_alone) {
  class Failing : public TokenConstraint {
   public:
    class Run : public ConstraintRun {
     public:
      Status next(std::span<const int32_t> tokens, std::span<uint32_t> mask) override {
        std::fill(mask.begin(), mask.end(), ~0u);
        if ((count_ += tokens.size()) >= 5) return invalid("too complex");
        return {};
      }
      size_t count_ = 0;
    };
    Expected<std::unique_ptr<ConstraintRun>> start() const override { return std::make_unique<Run>(); }
  };
  TestEngine engine(setup());
  Request failing = constrained(1, std::make_shared<Failing>());
  failing.stop_token_ids.clear();
  const std::vector<Answer> answers = engine.run({failing, constrained(2, schema_)});
  EXPECT_EQ(answers[0].finish, FinishReason::kError);
  EXPECT_NE(answers[0].error.find("too complex"), std::string::npos);
  EXPECT_EQ(fault_of(answers[1]), "");
}

// Sanitized, the reference takes minutes, and no mask is as late as its steps.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
const auto kBackends = ::testing::Values("cpu");
#else
const auto kBackends = ::testing::Values("cpu", "reference");
#endif

INSTANTIATE_TEST_SUITE_P(Backends, GrammarEngine, kBackends,
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tailrace
