// TOK-1: spaces around special tokens, metaspace schemes, added-token flags; ids and text equal the reference library's.
#include <gtest/gtest.h>

#include "support/text_fixture.h"
#include "text/detokenizer.h"

namespace tailrace {
namespace {

struct Row {
  std::string file, text, keep, skip;
  std::vector<TokenId> ids;
};

std::vector<Row> expected_rows() {
  std::istringstream in(read_fixture("tokenizer_expected.tsv"));
  std::vector<Row> rows;
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> columns;
    std::istringstream fields(line);
    for (std::string field; std::getline(fields, field, '\t');) columns.push_back(field);
    if (columns.size() != 5) continue;
    const auto quoted = [](const std::string& column) {
      return nlohmann::json::parse(column.substr(column.find('"'))).get<std::string>();
    };
    rows.push_back({columns[0], quoted(columns[1]), quoted(columns[3]), quoted(columns[4]),
                    nlohmann::json::parse(columns[2]).get<std::vector<TokenId>>()});
  }
  return rows;
}

std::string streamed(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<TokenId>& ids, bool skip) {
  Detokenizer detokenizer(tokenizer, skip);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.push(id);
  return text + detokenizer.flush();
}

TEST(Tok1, all_rows_of_the_reference) {
  const std::vector<Row> rows = expected_rows();
  ASSERT_EQ(rows.size(), 43u);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.file + " " + row.text);
    const auto tokenizer = fixture_tokenizer(row.file);
    ASSERT_NE(tokenizer, nullptr);
    const auto ids = tokenizer->encode(row.text, false, true);
    ASSERT_TRUE(ids.has_value());
    EXPECT_EQ(*ids, row.ids);
    EXPECT_EQ(tokenizer->decode(row.ids, false), row.keep);
    EXPECT_EQ(tokenizer->decode(row.ids, true), row.skip);
    EXPECT_EQ(streamed(tokenizer, row.ids, false), row.keep);
    EXPECT_EQ(streamed(tokenizer, row.ids, true), row.skip);
  }
}

TEST(Tok1, strip_applies_once_at_the_start) {
  const auto tokenizer = fixture_tokenizer("spm_meta_always.json");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(streamed(tokenizer, {265, 265}, false), "hi hi");
  Detokenizer after_text(tokenizer, true, TextPosition::kContinuation);
  EXPECT_EQ(after_text.push(265), " hi");
}

TEST(Tok1, special_text_stays_text_when_not_parsed) {
  const auto tokenizer = fixture_tokenizer("bytelevel.json");
  ASSERT_NE(tokenizer, nullptr);
  const auto plain = tokenizer->encode("<|im_start|>y<think>", false, false);
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->size(), std::string("<|im_start|>y").size() + 1);
  EXPECT_EQ(plain->back(), 264);  // not special: ordinary vocabulary
  EXPECT_EQ(tokenizer->decode(*plain, true), "<|im_start|>y<think>");
}

TEST(Tok1, unknown_component_is_a_load_error_that_names_it) {
  const auto load_with = [](const char* section, const char* json) {
    nlohmann::ordered_json file = nlohmann::ordered_json::parse(read_fixture("bytelevel.json"));
    file[section] = nlohmann::ordered_json::parse(json);
    const auto tokenizer = Tokenizer::from_json(file.dump());
    return tokenizer ? std::string("loaded") : tokenizer.error().message();
  };
  EXPECT_NE(load_with("pre_tokenizer", R"({"type":"Quantum"})").find("'Quantum'"), std::string::npos);
  EXPECT_NE(load_with("normalizer", R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Blur"}]})").find(
                "normalizers[1]: component 'Blur'"),
            std::string::npos);
  EXPECT_NE(load_with("normalizer", R"({"type":"NFC","strength":3})").find("'strength'"), std::string::npos);
  EXPECT_NE(load_with("decoder", R"({"type":"Rot13"})").find("'Rot13'"), std::string::npos);
  EXPECT_NE(load_with("post_processor", R"({"type":"Glue"})").find("'Glue'"), std::string::npos);
  EXPECT_NE(load_with("model", R"({"type":"Oracle"})").find("'Oracle'"), std::string::npos);
  EXPECT_NE(load_with("sentiment", "{}").find("'sentiment'"), std::string::npos);
  EXPECT_FALSE(Tokenizer::from_json("{").has_value());
  EXPECT_FALSE(Tokenizer::from_json("[]").has_value());
}

}  // namespace
}  // namespace tailrace
