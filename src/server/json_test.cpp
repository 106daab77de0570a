#include "server/json.h"

#include <gtest/gtest.h>
#include <malloc.h>

namespace tailrace {
namespace {

TEST(Json, keeps_the_order_of_keys) {
  EXPECT_EQ(dump_json(*parse_json(R"({"b":1,"a":[true,null,-2,3.5,"x"]})")), R"({"b":1,"a":[true,null,-2,3.5,"x"]})");
}

TEST(Json, bounds) {
  JsonLimits limits;
  limits.max_depth = 2;
  EXPECT_TRUE(parse_json("[[1]]", limits).has_value());
  EXPECT_FALSE(parse_json("[[[1]]]", limits).has_value());
  limits.max_values = 3;
  EXPECT_TRUE(parse_json("[1,2]", limits).has_value());
  EXPECT_FALSE(parse_json("[1,2,3]", limits).has_value());
  limits.max_members = 1;
  EXPECT_FALSE(parse_json(R"({"a":1,"b":2})", limits).has_value());
}

std::string repeated(const std::string& unit, int count) {
  std::string text = "[" + unit;
  for (int i = 1; i < count; ++i) text += "," + unit;
  return text + "]";
}

TEST(Json, memory_is_asked_for_while_the_document_grows) {
  JsonLimits limits;
  size_t asked = 0;
  limits.take_memory = [&](size_t bytes) {
    EXPECT_GT(bytes, asked);
    asked = bytes;
    return bytes > 1'000'000 ? Status(StatusCode::kTooLarge, "enough") : Status();
  };
  EXPECT_TRUE(parse_json(repeated("0", 10'000), limits).has_value());
  EXPECT_GT(asked, 200'000u);
  asked = 0;
  const auto refused = parse_json(R"({"a":1,"b":)" + repeated("0", 100'000) + "}", limits);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, StatusCode::kTooLarge);
  EXPECT_EQ(refused.error().message, "enough");
  EXPECT_LT(asked, 1'200'000u);
  EXPECT_EQ(parse_json("[", limits).error().code, StatusCode::kInvalidArgument);
}

// The estimate is honest: not below what the document takes, and not far above it.
TEST(Json, the_memory_asked_for_is_what_the_document_takes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the heap is the sanitizer's";
#endif
  for (const std::string unit : {"0", "1.5", "\"\"", "\"of sixteen bytes\"", "{}", "[]", "[[0]]", "{\"a\":\"\"}",
                                 "{\"a name of more than sixteen\":0,\"b\":[1]}"}) {
    const std::string text = repeated(unit, 100'000);
    JsonLimits limits;
    size_t asked = 0;
    limits.take_memory = [&](size_t bytes) { return asked = bytes, Status(); };
    const auto used = [] {
      const auto info = mallinfo2();
      return info.uordblks + info.hblkhd;
    };
    const size_t before = used();
    const auto document = parse_json(text, limits);
    ASSERT_TRUE(document.has_value());
    const size_t taken = used() - before;
    EXPECT_GE(static_cast<double>(asked), 0.95 * static_cast<double>(taken)) << unit;
    EXPECT_LE(asked, 4 * taken) << unit;
  }
}

TEST(Json, strictness) {
  for (const char* text : {"", " ", "nul", "NaN", "Infinity", "01", "1.", "+1", "[1,]", "{\"a\":1,}", "1e999", "-1e999", "[] []",
                           "\"\\ud800\"", "\"\\x\"", "\"\n\"", "/**/1", "{\"a\":1,\"a\":2}", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"",
                           "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\""}) {
    EXPECT_FALSE(parse_json(text).has_value()) << text;
  }
}

TEST(Json, errors_name_the_top_level_member) {
  EXPECT_EQ(parse_json(R"({"a":1,"b":{"c":[NaN]}})").error().top_level_key, "b");
  EXPECT_EQ(parse_json("[NaN]").error().top_level_key, "");
}

TEST(Json, many_members_take_linear_time) {
  std::string text = "{";
  for (int i = 0; i < 60000; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  EXPECT_EQ(parse_json(text + "}")->size(), 60000u);
}

TEST(Json, dump_replaces_what_is_not_utf8) { EXPECT_EQ(dump_json(Json("a\xff")), "\"a\xEF\xBF\xBD\""); }

}  // namespace
}  // namespace tailrace
