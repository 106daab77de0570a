// STOP-1 at the HTTP surface: nothing of a stop string reaches the client, nothing held back is lost.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

TEST(Stop1Http, the_cases_of_the_report) {
  ServerFixture fixture;
  const auto text = [&](const Json& stop) {
    const Answer answer = fixture.ask_both(chat_body("abc", {{"stop", stop}}));
    EXPECT_EQ(answer.finish[0], "stop");
    return answer.text[0];
  };
  EXPECT_EQ(text({"DEFGGHIJ"}), "");
  EXPECT_EQ(text({"GHIJ"}), "DEFG");
  EXPECT_EQ(text({"HIJX"}), "DEFGGHIJJKK");
  EXPECT_EQ(text({"JJK", "GH"}), "DEFG");
  EXPECT_EQ(text("GHIJ"), "DEFG");
}

TEST(Stop1Http, nothing_of_the_stop_string_is_in_any_chunk) {
  ServerFixture fixture;
  fixture.engine.step_us = 2000;
  const Answer answer = fixture.ask(chat_body("abc", {{"stop", {"GGHIJ"}}, {"stream", true}}));
  EXPECT_EQ(answer.deltas[0], (std::vector<std::string>{"DEF"}));
}

TEST(Stop1Http, usage_counts_up_to_the_token_that_completed_the_match) {
  ServerFixture fixture;
  EXPECT_EQ(fixture.ask_both(chat_body("abc", {{"stop", {"GHIJ"}}})).usage["completion_tokens"], 4);
  EXPECT_EQ(fixture.ask_both(chat_body("abc", {{"stop", {"D"}}})).usage["completion_tokens"], 1);
  EXPECT_EQ(fixture.ask_both(chat_body("abc", {{"stop", {"HIJX"}}})).usage["completion_tokens"], 6);
}

TEST(Stop1Http, a_match_frees_the_row) {
  ServerFixture fixture;
  fixture.engine.step_us = 1000;
  const Answer answer = fixture.ask(chat_body("loop", {{"stop", {"again again"}}}));
  EXPECT_EQ(answer.finish[0], "stop");
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_open() == 0; }));
  EXPECT_EQ(fixture.engine.num_cancelled, 1);
}

TEST(Stop1Http, held_text_comes_out_at_max_tokens) {
  ServerFixture fixture;
  const Answer answer = fixture.ask_both(chat_body("abc", {{"stop", {"HIJJKKK"}}, {"max_tokens", 4}}));
  EXPECT_EQ(answer.text[0], "DEFGGHIJJ");
  EXPECT_EQ(answer.finish[0], "length");
}

TEST(Stop1Http, min_tokens_comes_before_stop_strings_and_stop_tokens) {
  ServerFixture fixture;
  EXPECT_EQ(fixture.ask_both(chat_body("abc", {{"stop", {"GG"}}, {"min_tokens", 3}})).text[0], "DEFGGHIJJKK");
  const TokenId gg = *fixture.text.text->tokenizer->token_to_id("GG");
  EXPECT_EQ(fixture.ask_both(chat_body("abc", {{"stop_token_ids", {gg}}})).text[0], "DEF");
  EXPECT_EQ(fixture.ask_both(chat_body("abc", {{"stop_token_ids", {gg}}, {"min_tokens", 3}})).text[0], "DEFGGHIJJKK");
}

TEST(Stop1Http, odd_lists) {
  ServerFixture fixture;
  for (const Json& stop : {Json(""), Json::array(), Json(nullptr), Json::array({""})}) {
    EXPECT_EQ(fixture.ask_both(chat_body("abc", {{"stop", stop}})).text[0], "DEFGGHIJJKK") << stop;
  }
  EXPECT_EQ(fixture.ask_both(chat_body("abc", {{"stop", {"1", "2", "3", "4", "KK"}}})).text[0], "DEFGGHIJJ");
  EXPECT_EQ(fixture.ask(chat_body("abc", {{"stop", std::string(10000, 'x')}})).status, 400);
}

}  // namespace
}  // namespace tailrace::test
