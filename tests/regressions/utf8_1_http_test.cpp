// UTF8-1 at the HTTP surface: text repeated, lost or replaced when a code point crosses tokens.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

TEST(Utf8_1Http, joined_deltas_equal_the_whole_text) {
  ServerFixture fixture;
  EXPECT_EQ(fixture.ask_both(chat_body("utf8")).text[0], "A 世é😀b");
  EXPECT_EQ(fixture.ask_both(chat_body("emoji")).text[0], " ok 🎉!!");
}

TEST(Utf8_1Http, every_delta_is_whole_code_points) {
  ServerFixture fixture;
  fixture.engine.step_us = 2000;
  const Answer answer = fixture.ask(chat_body("emoji", {{"stream", true}}));
  std::string joined;
  for (const std::string& delta : answer.deltas[0]) {
    joined += delta;
    EXPECT_EQ(delta.find("\xEF\xBF\xBD"), std::string::npos);
    const bool has_start = delta.find('\xF0') != std::string::npos;
    EXPECT_EQ(has_start, delta.find('\x89') != std::string::npos) << "a code point was cut";
  }
  EXPECT_EQ(joined, " ok 🎉!!");
}

TEST(Utf8_1Http, an_incomplete_tail_at_the_end_is_replaced_once) {
  ServerFixture fixture;
  EXPECT_EQ(fixture.ask_both(chat_body("emoji", {{"max_tokens", 3}})).text[0], " ok \xEF\xBF\xBD");
}

TEST(Utf8_1Http, logprobs_hold_the_tokens_own_bytes) {
  ServerFixture fixture;
  const Answer answer = fixture.ask_both(chat_body("emoji", {{"logprobs", true}, {"top_logprobs", 2}}));
  ASSERT_EQ(answer.logprobs[0].size(), 5u);  // the end token is not listed
  EXPECT_EQ(answer.logprobs[0][1]["bytes"], Json::array({240, 159}));
  EXPECT_EQ(answer.logprobs[0][2]["bytes"], Json::array({142}));
  EXPECT_EQ(answer.logprobs[0][3]["bytes"], Json::array({137}));
  EXPECT_EQ(answer.logprobs[0][1]["token"], "\xEF\xBF\xBD");
  EXPECT_EQ(answer.logprobs[0][0]["top_logprobs"].size(), 2u);
}

}  // namespace
}  // namespace tailrace::test
