#include "text/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "support/small_tokenizers.h"

namespace tailrace {
namespace {

constexpr TokenId kEos = 2;

// Every byte, and pieces that cross what a grammar tells apart.
std::shared_ptr<const Tokenizer> pieces_tokenizer() {
  return *Tokenizer::from_gguf(sentence_piece_of({{"{\"", -1}, {"\":", -2}, {"\",\"", -3}, {"\"}", -4}, {"true", -5},
                                                  {"name", -6}, {"é", -7}, {"世界", -8}, {"12", -9}, {"</think>", -10},
                                                  {"e\":", -11}, {"},{", -12}, {"null}", -13}}));
}

class GrammarTest : public ::testing::Test {
 protected:
  GrammarTest() : tokenizer_(pieces_tokenizer()), grammars_(*Grammars::create(tokenizer_, std::vector{kEos}, {})) {}

  std::shared_ptr<const TokenConstraint> compile(const GrammarSource& source) {
    auto compiled = grammars_->compile(source);
    if (!compiled) {
      ADD_FAILURE() << compiled.error().message();
      return nullptr;
    }
    return *compiled;
  }
  std::string refusal(const GrammarSource& source) {
    const auto compiled = grammars_->compile(source);
    return compiled ? "" : compiled.error().message();
  }
  std::vector<uint32_t> fresh_mask() const { return std::vector<uint32_t>(mask_words(tokenizer_->vocab_size())); }
  static bool allowed(const std::vector<uint32_t>& mask, TokenId id) { return (mask[id / 32] >> (id % 32) & 1) != 0; }

  // The mask after `ids`; empty when they are not a beginning of any text of the grammar.
  std::vector<uint32_t> replay(const TokenConstraint& constraint, const std::vector<TokenId>& ids) {
    auto mask = fresh_mask();
    return (*constraint.start())->next(ids, mask).ok() ? mask : std::vector<uint32_t>{};
  }

  // A text of the grammar, each token drawn from those allowed; every mask is compared with what replays accept.
  std::string walk(const TokenConstraint& constraint, uint32_t seed, int checked_steps, int max_tokens = 400) {
    std::mt19937 random(seed);
    auto run = *constraint.start();
    std::vector<TokenId> ids;
    auto mask = fresh_mask();
    EXPECT_TRUE(run->next({}, mask).ok());
    while (static_cast<int>(ids.size()) < max_tokens) {
      if (static_cast<int>(ids.size()) < checked_steps) compare(constraint, ids, mask, random);
      std::vector<TokenId> choices;
      for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
        if (allowed(mask, id)) choices.push_back(id);
      }
      EXPECT_FALSE(choices.empty());
      if (choices.empty()) break;
      // Ends are likely, so that walks are short.
      const bool may_end = allowed(mask, kEos) && random() % 3 == 0;
      const TokenId id = may_end ? kEos : choices[random() % choices.size()];
      if (id == kEos) break;
      ids.push_back(id);
      EXPECT_TRUE(run->next(std::span(&ids.back(), 1), mask).ok());
    }
    std::string text;
    for (TokenId id : ids) text += tokenizer_->token_bytes(id);
    return text;
  }

 private:
  void compare(const TokenConstraint& constraint, std::vector<TokenId> ids, const std::vector<uint32_t>& mask,
               std::mt19937& random) {
    ids.push_back(0);
    for (int i = 0; i < 60; ++i) {
      const auto id = static_cast<TokenId>(random() % static_cast<uint32_t>(tokenizer_->vocab_size()));
      ids.back() = id;
      EXPECT_EQ(allowed(mask, id), !replay(constraint, ids).empty()) << "token " << id << " after " << ids.size() - 1;
    }
  }

 protected:
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::unique_ptr<const Grammars> grammars_;
};

TEST_F(GrammarTest, masks_are_what_replays_accept) {
  const auto regex = compile({.kind = GrammarKind::kRegex, .body = "(ab|name|é世)+12?"});
  const auto lark = compile({.body = "start: pair (\",\" pair)*\npair: /[a-z]+/ \"=\" (\"true\" | \"null\")\n"});
  const auto schema = compile(
      {.kind = GrammarKind::kJsonSchema,
       .body = R"({"type":"object","properties":{"name":{"enum":["a","né"]},"n":{"type":"integer"}},)"
               R"("required":["name","n"],"additionalProperties":false})"});
  for (uint32_t seed = 0; seed < 4; ++seed) {
    for (const auto& constraint : {regex, lark, schema}) walk(*constraint, seed, 10);
  }
}

TEST_F(GrammarTest, every_walk_is_valid_under_the_schema) {
  const auto schema = compile(
      {.kind = GrammarKind::kJsonSchema,
       .body = R"({"type":"object","properties":{"name":{"type":"string","maxLength":4},)"
               R"("n":{"type":"integer","minimum":-3,"maximum":12},)"
               R"("tags":{"type":"array","items":{"enum":["x","y",null]},"minItems":1,"maxItems":3}},)"
               R"("required":["name","tags"],"additionalProperties":false})"});
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::string text = walk(*schema, seed, 0);
    const auto json = nlohmann::json::parse(text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << text;
    ASSERT_TRUE(json.contains("name") && json["name"].is_string() && json.contains("tags")) << text;
    const auto n = json.value("n", nlohmann::json(0));
    EXPECT_TRUE(n.is_number_integer() && n >= -3 && n <= 12) << text;
    EXPECT_TRUE(json["tags"].size() >= 1 && json["tags"].size() <= 3) << text;
    for (const auto& tag : json["tags"]) EXPECT_TRUE(tag == "x" || tag == "y" || tag.is_null()) << text;
    EXPECT_LE(json.size(), 3u) << text;
  }
}

TEST_F(GrammarTest, an_answer_may_end_only_where_the_grammar_accepts) {
  const auto constraint = compile({.kind = GrammarKind::kRegex, .body = "ab?"});
  const TokenId a = *tokenizer_->token_to_id("<0x61>"), b = *tokenizer_->token_to_id("<0x62>");
  EXPECT_FALSE(allowed(replay(*constraint, {}), kEos));
  EXPECT_TRUE(allowed(replay(*constraint, {a}), kEos));
  const auto full = replay(*constraint, {a, b});
  for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id) EXPECT_EQ(allowed(full, id), id == kEos) << id;
}

TEST_F(GrammarTest, an_outer_grammar_calls_the_body_after_a_token_named_by_its_id) {
  const TokenId mark = *tokenizer_->token_to_id("</think>"), a = *tokenizer_->token_to_id("<0x61>");
  const auto grammars = *Grammars::create(tokenizer_, std::vector{kEos}, std::vector{mark});
  const auto constraint = *grammars->compile({.outer = "start: THOUGHT <[" + std::to_string(mark) +
                                                       "]> @body\nTHOUGHT: /(.|\\n)*/\n",
                                              .kind = GrammarKind::kRegex, .body = "a+"});
  EXPECT_FALSE(allowed(replay(*constraint, {}), kEos));
  EXPECT_TRUE(allowed(replay(*constraint, {a, a}), mark));
  EXPECT_TRUE(allowed(replay(*constraint, {}), *tokenizer_->token_to_id("true")));
  const auto after = replay(*constraint, {a, mark});
  EXPECT_TRUE(allowed(after, a));
  EXPECT_FALSE(allowed(after, *tokenizer_->token_to_id("true")));
  // Its characters are no mark, and the token is no text.
  std::vector<TokenId> spelled;
  for (const char c : std::string("</think>a")) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", c);
    spelled.push_back(*tokenizer_->token_to_id(name));
  }
  EXPECT_FALSE(allowed(replay(*constraint, spelled), kEos));
}

TEST_F(GrammarTest, what_cannot_be_compiled_is_named) {
  const auto schema = [](const char* text) { return GrammarSource{.kind = GrammarKind::kJsonSchema, .body = text}; };
  EXPECT_NE(refusal(schema(R"({"type":"array","uniqueItems":true})")).find("uniqueItems"), std::string::npos);
  EXPECT_NE(refusal(schema(R"({"type":"object","properties":{"a":{"not":{}}}})")).find("not"), std::string::npos);
  EXPECT_NE(refusal(schema(R"({"$ref":"http://other.host/x"})")), "");
  EXPECT_NE(refusal(schema("{")), "");
  EXPECT_NE(refusal(schema("false")), "");
  EXPECT_NE(refusal({.kind = GrammarKind::kRegex, .body = "(a"}), "");
  EXPECT_NE(refusal({.kind = GrammarKind::kRegex, .body = "\\p{Nope}"}), "");
  EXPECT_NE(refusal({.body = "start: missing\n"}), "");
  EXPECT_NE(refusal({.body = "root ::= missing"}).find("missing"), std::string::npos);
}

// What the library says of its own limits and states means nothing to who sent the grammar.
TEST_F(GrammarTest, errors_are_in_the_terms_of_the_request) {
  const auto schema = [](const char* text) { return GrammarSource{.kind = GrammarKind::kJsonSchema, .body = text}; };
  const auto regex = [](const char* text) { return GrammarSource{.kind = GrammarKind::kRegex, .body = text}; };
  const char* no_token = "no token of this model goes on a text of the grammar";
  EXPECT_EQ(refusal(regex("[^\\s\\S]")), no_token);
  EXPECT_EQ(refusal({.body = "start: a\na: a \"x\"\n"}), no_token);
  EXPECT_EQ(refusal({.body = "root ::= root \"x\""}), no_token);
  EXPECT_EQ(refusal(regex("(a")), "\"(a\" is no regex: unclosed group");
  EXPECT_EQ(refusal(schema(R"({"type":"string","pattern":"(a"})")),
            "a pattern of the schema is no regex: unclosed group");
  EXPECT_EQ(refusal(schema(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})")),
            "oneOf: several of its alternatives can be true of one value; say anyOf");
  EXPECT_EQ(refusal(schema(R"({"$ref":"http://other.host/x"})")), "a $ref of the schema leads out of it");
  EXPECT_EQ(refusal({.body = "start: a\na: \"x\" missing\n"}), "line 2, column 4: unknown name: \"missing\"");
  EXPECT_EQ(refusal({.body = "start: <nope>\n"}), "line 1, column 8: unknown special token: \"<nope>\"");
  EXPECT_EQ(refusal({.body = "start: \"a\n"}),
            "the grammar cannot be read as Lark: a quote or another sign is out of place");
  // On an answer's way.
  const auto constraint = compile(regex("(.*a.{30}b.{30}){50}"));
  auto run = *constraint->start();
  auto mask = fresh_mask();
  std::mt19937 random(1);
  const TokenId a = *tokenizer_->token_to_id("<0x61>");
  Status status = run->next({}, mask);
  for (int i = 0; i < 5000 && status.ok(); ++i) {
    const std::vector<TokenId> letter = {a + static_cast<TokenId>(random() % 2)};
    status = run->next(letter, mask);
  }
  EXPECT_EQ(status.message(), "the grammar's regexes and terminals are too complex together");
}

TEST_F(GrammarTest, bombs_are_refused_in_time_and_leave_the_process_alone) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NE(refusal({.kind = GrammarKind::kRegex, .body = std::string(5000, '(') + "a" + std::string(5000, ')')}), "");
  // Built as they are needed: no bombs, and a walk through them ends by itself or with an error.
  for (const char* regex : {"(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}b", "(.*a.{2000}b.{2000}){50}"}) {
    const auto compiled = grammars_->compile({.kind = GrammarKind::kRegex, .body = regex});
    if (!compiled) continue;
    auto run = *(*compiled)->start();
    auto mask = fresh_mask();
    const std::vector<TokenId> a = {*tokenizer_->token_to_id("<0x61>")};
    const std::span<const TokenId> letters(a);
    for (int i = 0; i < 500 && run->next(letters.first(i == 0 ? 0 : 1), mask).ok(); ++i) {
    }
  }
  std::string chain = "start: a0\n";  // as deep as the bound on its length allows
  for (int i = 0; i < 5400; ++i) chain += "a" + std::to_string(i) + ":a" + std::to_string(i + 1) + "\n";
  refusal({.body = chain + "a5400: \"x\"\n"});
  std::string deep = R"({"type":"string"})";
  for (int i = 0; i < 2000; ++i) deep = R"({"anyOf":[)" + deep + R"(,{"type":"array","items":{}}]})";
  EXPECT_NE(refusal({.kind = GrammarKind::kJsonSchema, .body = deep}), "");
  EXPECT_NE(refusal({.kind = GrammarKind::kJsonSchema, .body = std::string(600 << 10, ' ') + "{}"}), "");
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(std::chrono::duration<double>(took).count(), 60) << "each is bounded by ten seconds";
}

TEST_F(GrammarTest, a_token_outside_of_the_grammar_ends_the_run_with_an_error) {
  const auto constraint = compile({.kind = GrammarKind::kRegex, .body = "ab"});
  auto run = *constraint->start();
  auto mask = fresh_mask();
  ASSERT_TRUE(run->next({}, mask).ok());
  const std::vector<TokenId> wrong = {*tokenizer_->token_to_id("<0x62>")};
  EXPECT_FALSE(run->next(wrong, mask).ok());
}

TEST_F(GrammarTest, runs_of_one_grammar_go_on_side_by_side) {
  const auto constraint = compile({.kind = GrammarKind::kJsonSchema, .body = R"({"type":"object"})"});
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] { texts[t] = walk(*constraint, 7, 0, 100); });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
}

TEST_F(GrammarTest, a_vocabulary_without_an_end_is_refused) {
  EXPECT_FALSE(Grammars::create(tokenizer_, {}, {}));
  EXPECT_FALSE(Grammars::create(tokenizer_, std::vector{99999}, {}));
}

}  // namespace
}  // namespace tailrace
