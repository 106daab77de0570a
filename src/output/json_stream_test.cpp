#include "output/json_stream.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace tailrace {
namespace {

struct Result {
  std::string json;     // as written until the value was done or broken
  std::string closed;   // with close()
  size_t taken = 0;
  JsonStream::State state = JsonStream::State::kOpen;
};

// Pushes `text` in pieces that end at `cuts`.
Result read(std::string_view text, const std::vector<size_t>& cuts = {}, bool object_only = false) {
  JsonStream stream(object_only);
  Result result;
  size_t at = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : text.size();
    const size_t taken = stream.push(text.substr(at, end - at), &result.json);
    result.taken += taken;
    if (taken < end - at) break;
    at = end;
  }
  if (result.taken == text.size()) stream.end_of_input(&result.json);
  result.state = stream.state();
  result.closed = result.json;
  stream.close(&result.closed);
  return result;
}

std::string done(std::string_view text) {
  const Result result = read(text);
  return result.state == JsonStream::State::kDone ? result.json : "not done: " + result.closed;
}

TEST(JsonStream, values_are_written_compactly_and_in_order) {
  EXPECT_EQ(done(R"( { "z" : 1.0 , "a": [ true , null,{} ,[] ] ,"s":"x/y" } )"),
            R"({"z":1.0,"a":[true,null,{},[]],"s":"x/y"})");
  EXPECT_EQ(done("-1.5e+3"), "-1.5e+3");
  EXPECT_EQ(done("\"é世\""), "\"é世\"");
  EXPECT_EQ(done("[]"), "[]");
}

TEST(JsonStream, forgives_what_models_get_wrong) {
  EXPECT_EQ(done("[True,False,None]"), "[true,false,null]");
  EXPECT_EQ(done("{\"a\":[1,2,],}"), "{\"a\":[1,2]}");
  EXPECT_EQ(done("\"a\nb\tc\x01\""), "\"a\\nb\\tc\\u0001\"");
  EXPECT_EQ(done(R"("it\'s \d \u12")"), R"("it's \\d \\u12")");
}

TEST(JsonStream, writes_only_what_this_server_takes_back) {
  EXPECT_EQ(done(R"({"a":1,"b":2,"a":{"a":[3]},"c":4})"), R"({"a":1,"b":2,"c":4})");
  EXPECT_EQ(done(R"({"a":1,"\u0061":2})"), R"({"a":1})");
  EXPECT_EQ(done("[1e999,-1e999,1e-999]"), "[null,null,1e-999]");
  EXPECT_EQ(done(R"("\ud83d\ude00 \ud83d \ude00\ud83dx")"), "\"\U0001F600 \uFFFD \uFFFD\uFFFDx\"");
}

TEST(JsonStream, the_end_of_a_value_is_found) {
  const Result result = read(R"({"a":"}"}  </tool_call>)", {}, true);
  EXPECT_EQ(result.state, JsonStream::State::kDone);
  EXPECT_EQ(result.taken, std::string_view(R"({"a":"}"})").size());
}

TEST(JsonStream, malformed_input_breaks_at_its_place_and_closes_to_json) {
  const auto closed = [](std::string_view text) {
    const Result result = read(text, {}, true);
    EXPECT_EQ(result.state, JsonStream::State::kBroken) << text;
    return result.closed;
  };
  EXPECT_EQ(closed(""), "{}");
  EXPECT_EQ(closed("[1]"), "{}");
  EXPECT_EQ(closed("{'a':1}"), "{}");
  EXPECT_EQ(closed(R"({"a":"x\u00)"), R"({"a":"x"})");
  EXPECT_EQ(closed(R"({"a":"x\ud83d)"), "{\"a\":\"x\uFFFD\"}");
  EXPECT_EQ(closed(R"({"a":[1,{"b":"c)"), R"({"a":[1,{"b":"c"}]})");
  EXPECT_EQ(closed(R"({"a":1,"b")"), R"({"a":1})");
  EXPECT_EQ(closed(R"({"a":1,"b":tru)"), R"({"a":1})");
  EXPECT_EQ(closed(R"({"a":1,"a":[{"x":"y)"), R"({"a":1})");
  EXPECT_EQ(closed(R"({"a":01})"), "{}");
  EXPECT_EQ(closed(R"({"a":[1}})"), R"({"a":[1]})");
  EXPECT_EQ(closed("{\"a\":" + std::string(80, '[')), "{\"a\":" + std::string(59, '[') + std::string(59, ']') + "}");
}

TEST(JsonStream, strings_go_out_in_pieces) {
  JsonStream stream(true);
  std::string out;
  stream.push(R"({"a":"hel)", &out);
  EXPECT_EQ(out, R"({"a":"hel)");
  stream.push("lo", &out);
  EXPECT_EQ(out, R"({"a":"hello)");
}

// Random text of JSON's own pieces: whatever comes, each cut gives the same, and what was written closes to valid JSON.
TEST(JsonStream, any_text_cut_anywhere_gives_valid_json) {
  constexpr std::string_view kPieces[] = {"{",     "}",      "[",       "]",     ",",       ":",       "\"",
                                          "\"a\"", "\"b\":", "\\",      "\\n",   "\\ud83d", "\\ude00", "\\u00",
                                          "1",     "-2.5e3", "true",    "nul",   "None",    " ",       "\n",
                                          "é",     "x",      "{\"a\":", "\"\",", "1e999",   "\x01",    "/"};
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string text = random() % 4 != 0 ? "{" : "";
    for (size_t n = random() % 24; n > 0; --n) text += kPieces[random() % std::size(kPieces)];
    std::vector<size_t> cuts;
    for (size_t at = 0; at < text.size(); ++at) {
      if (random() % 3 == 0) cuts.push_back(at);
    }
    const bool object_only = random() % 2 == 0;
    const Result whole = read(text, {}, object_only), cut = read(text, cuts, object_only);
    ASSERT_EQ(whole.closed, cut.closed) << text;
    ASSERT_EQ(whole.state, cut.state) << text;
    ASSERT_EQ(whole.taken, cut.taken) << text;
    ASSERT_TRUE(nlohmann::json::accept(whole.closed)) << text << " -> " << whole.closed;
    const auto before = nlohmann::ordered_json::parse(text, nullptr, false);
    if (before.is_discarded() || text.find("\\u") != std::string::npos || text.find("1e999") != std::string::npos) {
      continue;
    }
    if (object_only && !before.is_object()) continue;
    ASSERT_EQ(whole.state, JsonStream::State::kDone) << text;
  }
}

}  // namespace
}  // namespace tailrace
