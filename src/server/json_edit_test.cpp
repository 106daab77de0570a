#include "server/json_edit.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

std::string edited(std::string_view text, JsonDialect dialect = JsonDialect::kCommented,
                   const char* wanted = R"({"a":1,"in":{"b":"x"}})") {
  const auto out = set_in_json(text, Json::parse(wanted), dialect);
  return out ? *out : "fault: " + out.error().message();
}

TEST(JsonEdit, an_empty_file_gets_all) {
  const std::string all = "{\n  \"a\": 1,\n  \"in\": {\n    \"b\": \"x\"\n  }\n}\n";
  for (const char* text : {"", " \r\n\t", "\xEF\xBB\xBF"}) EXPECT_EQ(edited(text), all);
}

TEST(JsonEdit, only_values_that_differ_change) {
  const std::string same = "{\"in\" :{\"b\":\"\\u0078\" } , \"n\": 12345678901234567890123, \"a\": 1.0e0}\t";
  EXPECT_EQ(edited(same), same);
  EXPECT_EQ(edited("{ \"big\":9007199254740993,\"in\":{\"b\" : [\"]}\",{}] },\"f\":1.50,\"a\":\"\\\"}\"}"),
            "{ \"big\":9007199254740993,\"in\":{\"b\" : \"x\" },\"f\":1.50,\"a\":1}");
}

TEST(JsonEdit, members_are_added_as_the_others_are_written) {
  EXPECT_EQ(edited("{\n\t\"z\": 1,\n\t\"in\": { \"y\": {} }\n}\n"),
            "{\n\t\"z\": 1,\n\t\"in\": { \"y\": {}, \"b\": \"x\" },\n\t\"a\": 1\n}\n");
  EXPECT_EQ(edited("{\r\n    \"in\": {\r\n        \"y\": 1\r\n    }\r\n}"),
            "{\r\n    \"in\": {\r\n        \"y\": 1,\r\n        \"b\": \"x\"\r\n    },\r\n    \"a\": 1\r\n}");
  EXPECT_EQ(edited("{\"z\":[1,\n2]}", JsonDialect::kStrict), "{\"z\":[1,\n2], \"a\": 1, \"in\": {\"b\":\"x\"}}");
  EXPECT_EQ(edited("{\n    \"z\": 1}"), "{\n    \"z\": 1,\n    \"a\": 1,\n    \"in\": {\n        \"b\": \"x\"\n    }}");
}

TEST(JsonEdit, an_object_without_members_is_filled) {
  EXPECT_EQ(edited("{}"), "{\n  \"a\": 1,\n  \"in\": {\n    \"b\": \"x\"\n  }\n}");
  EXPECT_EQ(edited("\xEF\xBB\xBF{\r\n  \"a\": 1,\r\n  \"in\": {}\r\n}"),
            "\xEF\xBB\xBF{\r\n  \"a\": 1,\r\n  \"in\": {\r\n    \"b\": \"x\"\r\n  }\r\n}");
  EXPECT_EQ(edited("{\n  \"a\": 1,\n  \"in\": {\n    // none yet\n  }\n}"),
            "{\n  \"a\": 1,\n  \"in\": {\n    // none yet\n    \"b\": \"x\"\n  }\n}");
}

TEST(JsonEdit, comments_stay_where_they_are) {
  EXPECT_EQ(edited("// top \"a\": {\n{\n  \"a\": /* was */ 2, // why, \"in\"\n  \"u\": \"http://x/*\", "
                   "/* all\n  of it */ "
                   "\"in\": {\n    \"y\": 1 // last }\n  } // end,\n}\n// \"\n"),
            "// top \"a\": {\n{\n  \"a\": /* was */ 1, // why, \"in\"\n  \"u\": \"http://x/*\", "
                   "/* all\n  of it */ "
            "\"in\": {\n    \"y\": 1, // last }\n    \"b\": \"x\"\n  } // end,\n}\n// \"\n");
  EXPECT_EQ(edited("{\n  \"in\": {\"b\": \"x\"} /* one\n  two */\n  // three\n}"),
            "{\n  \"in\": {\"b\": \"x\"}, /* one\n  two */\n  \"a\": 1\n  // three\n}");
}

TEST(JsonEdit, a_comma_at_the_end_stays_at_the_end) {
  EXPECT_EQ(edited("{\n  \"x\": [1, 2,],\n  \"in\": {\"y\": 1, /* , */ },\n  \"z\": 1 /* , */, // here\n}"),
            "{\n  \"x\": [1, 2,],\n  \"in\": {\"y\": 1, \"b\": \"x\", /* , */ },\n  \"z\": 1 /* , */, // here\n"
            "  \"a\": 1,\n}");
}

TEST(JsonEdit, twice_is_the_same_as_once) {
  for (const char* text : {"", "{}", "{\"z\":{}}", "{\n \"z\": 1, // c\n}", "{\n\t\"in\": {\n\t},\n}"}) {
    const std::string once = edited(text);
    EXPECT_EQ(edited(once), once) << text;
    EXPECT_NE(once.find("\"b\""), std::string::npos) << once;
  }
}

TEST(JsonEdit, comments_need_a_dialect_that_has_them) {
  for (const char* text : {"{} // x", "/**/{}", "{\"z\":1,}"}) {
    EXPECT_EQ(edited(text, JsonDialect::kStrict).rfind("fault: not JSON", 0), 0u) << text;
    EXPECT_NE(edited(text).rfind("fault", 0), 0u) << text;
  }
}

TEST(JsonEdit, what_is_neither_is_refused) {
  for (const char* text : {"{", "{,}", "{\"z\":1,,}", "[,]", "{\"z\":}", "{} /*", "{\"z\":1}}", "{\"z\" 1}", "// only",
                           "{\"a\":1,\"a\":2}", "{'a':1}", "{a:1}", "{} / x", "{\"z\": {env:X}}", "\"", "{\"",
                           "{\"z\": \"\\"})
    EXPECT_EQ(edited(text).rfind("fault: not JSON", 0), 0u) << text << edited(text);
  EXPECT_EQ(edited("[]"), "fault: not a JSON object");
  EXPECT_EQ(edited("{\"in\": 1}"), "fault: in is no object there");
  EXPECT_EQ(edited("{\"in\": {\"b\": {}}}", JsonDialect::kStrict, R"({"in":{"b":{"c":1}}})"),
            "{\"in\": {\"b\": {\n  \"c\": 1\n}}}");
  EXPECT_EQ(edited("{\"in\": {\"b\": []}}", JsonDialect::kStrict, R"({"in":{"b":{"c":1}}})"),
            "fault: in.b is no object there");
}

}  // namespace
}  // namespace tailrace
