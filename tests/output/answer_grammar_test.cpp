// Random walks through the grammar of each family's answers: what its parser reads from them is what was asked for.
#include "output/answer_grammar.h"

#include <gtest/gtest.h>

#include <random>

#include "output/output_fixture.h"

namespace tailrace::test {
namespace {

using Json = nlohmann::ordered_json;

constexpr TokenId kEos = 257;  // <|im_end|> of small_byte_level

// With the markers as special tokens, and as text where the family has them so.
std::vector<Family> families() {
  const OutputFormat qwen{ToolFormat::kQwen, ReasoningFormat::kQwen3};
  const OutputFormat coder{ToolFormat::kQwenCoder, ReasoningFormat::kQwen3};
  const OutputFormat llama{ToolFormat::kLlama3, ReasoningFormat::kNone};
  const OutputFormat mistral{ToolFormat::kMistral, ReasoningFormat::kMistral};
  const OutputFormat gemma{ToolFormat::kGemma4, ReasoningFormat::kGemma4};
  const OutputFormat harmony{ToolFormat::kHarmony, ReasoningFormat::kHarmony};
  const std::vector<std::string> gemma_tokens = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"};
  return {{"qwen", qwen, {}, ThinkStart::kUnsaid},
          {"qwen, special", qwen, {"</think>", "<tool_call>", "</tool_call>"}, ThinkStart::kInside},
          {"coder", coder, {}, ThinkStart::kInside},
          {"coder, special", coder, {"</think>", "<tool_call>", "</tool_call>"}, ThinkStart::kUnsaid},
          {"llama", llama, {"<|python_tag|>"}, ThinkStart::kOutside},
          {"mistral, array", mistral, {"[TOOL_CALLS]", "[THINK]", "[/THINK]"}, ThinkStart::kUnsaid},
          {"mistral", mistral, {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"}, ThinkStart::kOutside},
          {"mistral, text", mistral, {}, ThinkStart::kOutside},
          {"gemma", gemma, gemma_tokens, ThinkStart::kUnsaid},
          {"gemma, text", gemma, {}, ThinkStart::kOutside},
          {"gpt-oss", harmony,
           {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"},
           ThinkStart::kOutside}};
}

std::vector<CallableFunction> functions() {
  return {{"run", Json::parse(R"({"type":"object","properties":{"cmd":{"type":"string"},"n":{"type":"integer"},)"
                              R"("mode":{"enum":["fast","slow"]},"tags":{"type":"array","items":{"type":"string"}},)"
                              R"("at":{"$ref":"#/$defs/point"}},"required":["cmd","mode"],)"
                              R"("additionalProperties":false,)"
                              R"("$defs":{"point":{"type":"object","properties":{"x":{"type":"number"}},)"
                              R"("required":["x"],"additionalProperties":false}}})")},
          {"get_time", nullptr}};
}

class Walker {
 public:
  explicit Walker(const FamilyRunner& runner) : runner_(runner) {
    const auto control = control_ids(runner.family().format, *runner.tokenizer());
    grammars_ = Grammars::create(runner.tokenizer(), std::vector{kEos}, control).value();
  }
  std::shared_ptr<const TokenConstraint> compile(const std::optional<GrammarSource>& body, const CallRules& calls) {
    const Family& family = runner_.family();
    const auto source = answer_grammar(family.format, family.start, *runner_.tokenizer(), body, calls);
    if (!source) ADD_FAILURE() << family.name << ": " << source.error().message();
    auto compiled = grammars_->compile(*source);
    if (!compiled) {
      ADD_FAILURE() << family.name << ": " << compiled.error().message() << "\n" << source->outer;
      return nullptr;
    }
    return *compiled;
  }
  // The answer's tokens as spellings, text between special ones joined.
  // Where it may end it does with a chance of one in `ends`.
  std::vector<std::string> walk(const TokenConstraint& constraint, uint32_t seed, uint32_t ends = 2) {
    const Tokenizer& tokenizer = *runner_.tokenizer();
    std::mt19937 random(seed);
    auto run = *constraint.start();
    std::vector<uint32_t> mask(mask_words(tokenizer.vocab_size()));
    std::vector<std::string> out;
    std::vector<bool> is_text;
    std::string wanted = seed % 2 == 0 ? "{" : "";  // characters to go on with, as far as they are allowed
    bool text = false;                              // the last token was
    EXPECT_TRUE(run->next({}, mask).ok());
    for (int i = 0; i < 4000; ++i) {
      const TokenId id = choose(mask, wanted, i < 500 ? ends : 1, random);
      if (id == kEos) return apart(out, is_text);
      const std::string bytes(tokenizer.token_bytes(id));
      const std::string spelling = tokenizer.is_special(id) ? tokenizer.id_to_token(id) : bytes;
      if (tokenizer.is_special(id) || !text) is_text.push_back(!tokenizer.is_special(id)), out.emplace_back();
      text = !tokenizer.is_special(id);
      out.back() += spelling;
      const Status status = run->next(std::span(&id, 1), mask);
      EXPECT_TRUE(status.ok()) << status.message();
      if (!status.ok()) return out;
    }
    ADD_FAILURE() << runner_.family().name << " does not end";
    return out;
  }

 private:
  // The runner takes what is spelled like a special token for one: text that is goes in two parts.
  std::vector<std::string> apart(const std::vector<std::string>& pieces, const std::vector<bool>& is_text) const {
    std::vector<std::string> out;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const bool alike = is_text[i] && runner_.is_special(pieces[i]);
      if (alike) out.push_back(pieces[i].substr(0, 2));
      out.push_back(alike ? pieces[i].substr(2) : pieces[i]);
    }
    return out;
  }
  TokenId choose(const std::vector<uint32_t>& mask, std::string& wanted, uint32_t ends, std::mt19937& random) {
    const auto allowed = [&](TokenId id) { return (mask[id / 32] >> (id % 32) & 1) != 0; };
    if (allowed(kEos) && random() % ends == 0) return kEos;
    std::vector<TokenId> control, all;
    for (TokenId id = 0; id < runner_.tokenizer()->vocab_size(); ++id) {
      if (allowed(id)) all.push_back(id);
      if (allowed(id) && id > 258) control.push_back(id);
    }
    EXPECT_FALSE(all.empty());
    if (!control.empty() && random() % 6 == 0) return control[random() % control.size()];
    if (wanted.empty() && random() % 4 == 0) {
      static const std::vector<std::string> words = {
          "</think>", "\n</parameter>", "<|\"|>",       "<channel|>",   "\"",       "}",
          "]",        "<tool_call>",    "[TOOL_CALLS]", "<|tool_call>", "[/THINK]"};
      wanted = words[random() % words.size()];
    }
    if (!wanted.empty()) {
      const auto byte = static_cast<TokenId>(static_cast<unsigned char>(wanted[0]));
      wanted.erase(0, 1);
      if (allowed(byte)) return byte;
      wanted.clear();
    }
    return all[random() % all.size()];
  }

  const FamilyRunner& runner_;
  std::unique_ptr<const Grammars> grammars_;
};

// "" or what is wrong.
std::string fault_of(const FoundCall& call) {
  const auto json = Json::parse(call.arguments, nullptr, false);
  if (!call.complete || !json.is_object()) return "not complete";
  if (call.name == "get_time") return "";
  if (call.name != "run" || !json.contains("cmd") || !json.contains("mode")) return "a member lacks";
  const auto is_string = [](const Json& v) { return v.is_string(); };
  for (const auto& [key, value] : json.items()) {
    const bool good = key == "cmd"    ? value.is_string()
                      : key == "n"    ? value.is_number() || value.is_null()  // too long for 64 bits, or for a double
                      : key == "mode" ? value == "fast" || value == "slow"
                      : key == "tags" ? value.is_array() && std::all_of(value.begin(), value.end(), is_string)
                      : key == "at"   ? value.is_object() && value.size() == 1 && value.contains("x")
                                      : false;
    if (!good) return "member " + key;
  }
  return "";
}

TEST(AnswerGrammar, required_calls_are_read_back_and_nothing_else_is) {
  for (const Family& family : families()) {
    const FamilyRunner runner(family);
    Walker walker(runner);
    for (const bool parallel : {true, false}) {
      const CallRules rules{.functions = functions(), .required = true, .parallel = parallel};
      const auto constraint = walker.compile(std::nullopt, rules);
      ASSERT_NE(constraint, nullptr);
      size_t most = 0;
      for (uint32_t seed = 0; seed < 25; ++seed) {
        const auto tokens = walker.walk(*constraint, seed);
        const Found found = runner.run(tokens);
        std::string raw;
        for (const auto& token : tokens) raw += token;
        ASSERT_EQ(found.fault, "") << family.name << "\n" << raw;
        ASSERT_EQ(found.content, "") << family.name << "\n" << raw;
        ASSERT_GE(found.calls.size(), 1u) << family.name << "\n" << raw;
        most = std::max(most, found.calls.size());
        for (const FoundCall& call : found.calls) {
          ASSERT_EQ(fault_of(call), "") << family.name << " " << call.arguments << "\n" << raw;
        }
      }
      const bool several = parallel && family.format.tools != ToolFormat::kHarmony;
      EXPECT_EQ(most > 1, several) << family.name;
    }
  }
}

TEST(AnswerGrammar, content_has_its_form_after_the_reasoning) {
  for (const Family& family : families()) {
    const FamilyRunner runner(family);
    Walker walker(runner);
    const GrammarSource body{.kind = GrammarKind::kJsonSchema,
                             .body = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],)"
                                     R"("additionalProperties":false})"};
    int reasoned = 0;
    for (const bool tools : {false, true}) {
      CallRules calls;
      if (tools) calls.functions = functions();
      const auto constraint = walker.compile(body, calls);
      ASSERT_NE(constraint, nullptr);
      for (uint32_t seed = 0; seed < 20; ++seed) {
        const auto tokens = walker.walk(*constraint, seed);
        const Found found = runner.run(tokens);
        const auto json = Json::parse(found.content, nullptr, false);
        const bool called = !found.calls.empty();
        const bool formed = json.is_object() && json.size() == 1 && json.contains("a") && json["a"].is_number();
        ASSERT_TRUE(called ? tools && found.content.empty() : formed) << family.name << ": " << shown(found);
        for (const FoundCall& call : found.calls) ASSERT_EQ(fault_of(call), "") << family.name << " " << call.arguments;
        reasoned += !found.reasoning.empty();
      }
    }
    const bool harmony = family.format.reasoning == ReasoningFormat::kHarmony;
    EXPECT_EQ(reasoned > 0, harmony || family.start != ThinkStart::kOutside) << family.name;
  }
}

TEST(AnswerGrammar, strict_calls_in_free_text_are_whole_ones) {
  for (const Family& family : families()) {
    const FamilyRunner runner(family);
    Walker walker(runner);
    const auto constraint = walker.compile(std::nullopt, {.functions = functions()});
    ASSERT_NE(constraint, nullptr);
    int calls = 0;
    for (uint32_t seed = 0; seed < 40; ++seed) {
      const Found found = runner.run(walker.walk(*constraint, seed, 60));
      ASSERT_EQ(found.fault, "") << family.name;
      for (const FoundCall& call : found.calls) ASSERT_EQ(fault_of(call), "") << family.name << " " << call.arguments;
      calls += static_cast<int>(found.calls.size());
    }
    EXPECT_GT(calls, 0) << family.name;
  }
}

TEST(AnswerGrammar, what_bare_text_cannot_keep_is_named) {
  const FamilyRunner runner(families()[2]);
  const Json parameters = Json::parse(R"({"properties":{"c":{"type":"string","pattern":"^a"}}})");
  const CallRules calls{.functions = {{"run", parameters}}};
  const OutputFormat& format = runner.family().format;
  const auto source = answer_grammar(format, ThinkStart::kOutside, *runner.tokenizer(), std::nullopt, calls);
  ASSERT_FALSE(source);
  EXPECT_NE(source.error().message().find("\"pattern\""), std::string::npos);
}

}  // namespace
}  // namespace tailrace::test
