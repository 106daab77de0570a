#include "server/json.h"

#include <gtest/gtest.h>

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
