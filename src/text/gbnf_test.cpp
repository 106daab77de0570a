// GBNF (`root ::= ...`): its texts are those of its rules, whatever a lexer would make of them.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "support/small_tokenizers.h"
#include "text/grammar.h"

namespace tailrace {
namespace {

constexpr TokenId kEos = 2;

class GbnfTest : public ::testing::Test {
 protected:
  GbnfTest()
      : tokenizer_(*Tokenizer::from_gguf(sentence_piece_of({{"ab", -1}, {"ba", -2}, {"\": ", -3}, {"é", -4}}))),
        grammars_(*Grammars::create(tokenizer_, std::vector{kEos}, {})) {}

  Expected<std::shared_ptr<const TokenConstraint>> compile(const std::string& text) {
    return grammars_->compile({.body = text});
  }
  std::string refusal(const std::string& text) {
    const auto compiled = compile(text);
    return compiled ? "" : compiled.error().message();
  }

  // Whether an answer may be `text`, byte by byte.
  bool accepts(const TokenConstraint& constraint, const std::string& text) {
    std::vector<TokenId> ids;
    char name[8];
    for (const char c : text) {
      std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned char>(c));
      ids.push_back(*tokenizer_->token_to_id(name));
    }
    std::vector<uint32_t> mask(mask_words(tokenizer_->vocab_size()));
    return (*constraint.start())->next(ids, mask).ok() && (mask[kEos / 32] >> (kEos % 32) & 1) != 0;
  }
  void expect(const std::string& grammar, std::initializer_list<const char*> texts,
              std::initializer_list<const char*> others) {
    const auto compiled = compile(grammar);
    ASSERT_TRUE(compiled) << grammar << ": " << compiled.error().message();
    for (const char* text : texts) EXPECT_TRUE(accepts(**compiled, text)) << grammar << " and " << text;
    for (const char* text : others) EXPECT_FALSE(accepts(**compiled, text)) << grammar << " and " << text;
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::unique_ptr<const Grammars> grammars_;
};

TEST_F(GbnfTest, every_kind_of_item) {
  expect("root ::= \"a\\\"\\n\\x41\\u00e9\"", {"a\"\nAé"}, {"a", "a\"\nAe"});
  expect("root ::= [a-c_\\]\\-] [^a-z\\n] .", {"a1x", "_Aé", "]\"\n", "-- "}, {"d1x", "aax", "a\nx", "a1"});
  expect("root ::= \"a\"* \"b\"+ \"c\"?", {"b", "aabbc"}, {"a", "bcc", ""});
  expect("root ::= [0-9]{2} \"x\"{1,} \"y\"{0,2}", {"12x", "12xxxyy"}, {"1x", "12", "12xyyy"});
  expect("root ::= (\"a\" | \"b\" \"c\" |) \"d\"", {"ad", "bcd", "d"}, {"bd", "acd"});
  expect("root ::= | \"a\"", {"", "a"}, {"aa"});
  expect("root ::= \"/\" [/#] \"//\"", {"/#//"}, {"/", "//"});
  // A rule ends where the next one begins; comments and line breaks are blanks.
  expect("# the whole\nroot ::=\n  item-1 # one\n  | item_2\nitem-1 ::= \"a\"\nitem_2 ::= Item \"c\"\nItem ::= \"b\"",
         {"a", "bc"}, {"b", "c"});
}

TEST_F(GbnfTest, rules_that_recurse) {
  expect("root ::= \"(\" root \")\" | [a-z]+", {"a", "((xyz))"}, {"((a)", "()"});
  expect("root ::= root \"+\" n | n\nn ::= [0-9]+", {"1", "12+3+4"}, {"+", "1+"});
  expect("root ::= ws v\nv ::= \"{\" ws (s \":\" ws v (\",\" ws s \":\" ws v)*)? \"}\" ws | s\n"
         "s ::= \"\\\"\" [^\"\\\\]* \"\\\"\" ws\nws ::= [ \\n]*",
         {"{}", " { \"a,}\": \"b\" , \"c\":{} }", "\"\""}, {"{\"a\"}", "{} x", "{\"a\":\"b\",}"});
}

// A lexer that reads as far as it can would refuse these, or come to where nothing is allowed.
TEST_F(GbnfTest, what_a_greedy_lexer_would_not_find) {
  for (const char* end : {"", "\nx ::= \"(\" x \")\" | \"\""}) {  // with a rule that recurses and without
    const std::string begin = *end == '\0' ? "root ::= " : "root ::= x ";
    expect(begin + "[a-z]* \"b\"" + end, {"b", "ab", "bbb"}, {"", "ba"});
    expect(begin + "([a-z] \"bx\" | \"ab\" \"d\")" + end, {"abx", "abd"}, {"ab", "abb"});
    expect(begin + "(\"a\" | \"ab\") \"bc\"" + end, {"abc", "abbc"}, {"abb"});
    expect(begin + "[ ]* \" x\"" + end, {" x", "   x"}, {"x"});
  }
}

TEST_F(GbnfTest, faults_are_named_with_their_line) {
  EXPECT_EQ(refusal("root ::= x"), "the EBNF grammar has no rule 'x'");
  EXPECT_EQ(refusal("x ::= \"a\""), "the EBNF grammar has no rule 'root'");
  for (const char* text :
       {"root ::= \"a\" \n ; ", "root ::= \n (\"a\"", "root ::= \n \"a", "root ::= \n [a", "root ::= \n [z-a]",
        "root ::= \n \"a\"{3,2}", "root ::= \n \"a\"{3", "root ::= \n \"a\"{0}", "root ::= \n \"\\q\"",
        "root ::= \n \"\\xZZ\"", "root ::= \n \"\\uD800\"", "root ::= \n []", "root ::= \"a\" \n root ::= \"b\"",
        "root ::= \n \"a\"+*", "root ::= \n \"a\")"}) {
    EXPECT_EQ(refusal(text).substr(0, 6), "line 2") << text << ": " << refusal(text);
  }
  EXPECT_NE(refusal("root ::= " + std::string(200, '(') + std::string(200, ')')).find("brackets"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"\\"), "");
  EXPECT_NE(refusal("root ::= root"), "");
  // Text that holds "::=" and is Lark stays so.
  expect("start: \"a ::= b\"", {"a ::= b"}, {"a"});
}

TEST_F(GbnfTest, long_chains_of_rules_are_compiled_or_refused) {
  std::string chain = "root ::= a0\n";
  for (int i = 0; i < 3000; ++i) chain += "a" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + "\n";
  for (const char* end : {"a3000 ::= \"x\"", "a3000 ::= \"x\" root | \"x\""}) {
    const auto compiled = compile(chain + end);
    EXPECT_TRUE(!compiled || accepts(**compiled, "x"));
  }
}

// Random grammars over a and b, and the texts of up to kLongest characters that they have.
class Sample {
 public:
  static constexpr size_t kRules = 3, kLongest = 5;
  using Texts = std::set<std::string>;

  explicit Sample(uint32_t seed) : random_(seed) {
    for (size_t rule = 0; rule < kRules; ++rule) rules_.push_back(node(3));
  }

  std::string gbnf() const {
    std::string out;
    for (size_t rule = 0; rule < kRules; ++rule) out += name(rule) + " ::= " + rules_[rule].text + "\n";
    return out;
  }
  Texts texts() {
    std::vector<Texts> known(kRules);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t rule = 0; rule < kRules; ++rule) {
        Texts now = of(rules_[rule], known);
        changed |= now != known[rule];
        known[rule] = std::move(now);
      }
    }
    return known[0];
  }

 private:
  struct Node {
    std::string text;
    Texts own;              // of a leaf
    int rule = -1;
    char kind = 'l';        // leaf, rule, sequence, alternatives, times
    int least = 0, most = 0;
    std::vector<Node> parts;
  };

  static std::string name(size_t rule) { return rule == 0 ? "root" : "r" + std::to_string(rule); }
  uint32_t below(uint32_t n) { return random_() % n; }

  Node node(int depth) {
    const uint32_t pick = below(depth > 0 ? 8 : 4);
    if (pick == 0) {
      const std::string text = std::vector<std::string>{"a", "b", "ab", "ba", "aab", ""}[below(6)];
      return {.text = "\"" + text + "\"", .own = {text}};
    }
    if (pick == 1) return {.text = "[ab]", .own = {"a", "b"}};
    if (pick == 2) return {.text = "[^b-z]", .own = {"a"}};
    if (pick == 3) {
      const int rule = static_cast<int>(below(kRules));
      return {.text = name(rule), .rule = rule, .kind = 'r'};
    }
    if (pick == 4) {
      Node inner = node(depth - 1);
      const std::vector<std::tuple<const char*, int, int>> all = {
          {"*", 0, 9}, {"+", 1, 9}, {"?", 0, 1}, {"{2}", 2, 2}, {"{1,2}", 1, 2}};
      const auto [sign, least, most] = all[below(5)];
      return {.text = "(" + inner.text + ")" + sign, .kind = 't', .least = least, .most = most, .parts = {inner}};
    }
    Node out{.kind = pick < 6 ? 'a' : 's'};
    for (uint32_t i = 0, count = 2 + below(2); i < count; ++i) {
      out.parts.push_back(node(depth - 1));
      out.text += (i == 0 ? "(" : out.kind == 'a' ? " | " : " ") + out.parts.back().text;
    }
    out.text += ")";
    return out;
  }

  static Texts joined(const Texts& left, const Texts& right) {
    Texts out;
    for (const auto& a : left) {
      for (const auto& b : right) {
        if (a.size() + b.size() <= kLongest) out.insert(a + b);
      }
    }
    return out;
  }
  static Texts of(const Node& node, const std::vector<Texts>& known) {
    if (node.kind == 'l') return node.own;
    if (node.kind == 'r') return known[node.rule];
    Texts out;
    if (node.kind == 'a') {
      for (const Node& part : node.parts) out.merge(of(part, known));
      return out;
    }
    Texts so_far = {""};
    if (node.kind == 's') {
      for (const Node& part : node.parts) so_far = joined(so_far, of(part, known));
      return so_far;
    }
    const Texts once = of(node.parts[0], known);
    for (int i = 0; i <= node.most; ++i) {
      if (i >= node.least) out.insert(so_far.begin(), so_far.end());
      so_far = joined(so_far, once);
    }
    return out;
  }

  std::mt19937 random_;
  std::vector<Node> rules_;
};

TEST_F(GbnfTest, random_grammars_have_the_texts_of_their_rules) {
  std::vector<std::string> all = {""};
  for (size_t i = 0; all[i].size() < Sample::kLongest; ++i) {
    all.push_back(all[i] + "a");
    all.push_back(all[i] + "b");
  }
  int compared = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    Sample sample(seed);
    const auto texts = sample.texts();
    const auto compiled = compile(sample.gbnf());
    if (texts.empty()) continue;  // whose rules never end
    ASSERT_TRUE(compiled) << sample.gbnf() << compiled.error().message();
    ++compared;
    for (const std::string& text : all) {
      EXPECT_EQ(accepts(**compiled, text), texts.count(text) == 1) << sample.gbnf() << "'" << text << "'";
    }
  }
  EXPECT_GT(compared, 75);
}

}  // namespace
}  // namespace tailrace
