// USE-1: finish_reason and token counts, the same streamed or not. The end-of-sequence token counts.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

TEST(Use1, length_and_counts_at_max_tokens) {
  ServerFixture fixture;
  for (const int max_tokens : {1, 5, 19, 20}) {
    const Answer answer = fixture.ask_both(chat_body("long", {{"max_tokens", max_tokens}}));
    EXPECT_EQ(answer.finish[0], "length") << max_tokens;
    EXPECT_EQ(answer.usage["completion_tokens"], max_tokens);
  }
}

TEST(Use1, eos_exactly_at_max_tokens_is_stop) {
  ServerFixture fixture;
  for (const Json& limit : {Json{{"max_tokens", 21}}, Json{{"max_completion_tokens", 21}}, Json::object()}) {
    const Answer answer = fixture.ask_both(chat_body("long", limit));
    EXPECT_EQ(answer.finish[0], "stop");
    EXPECT_EQ(answer.usage["completion_tokens"], 21);
  }
}

TEST(Use1, ignore_eos_goes_on) {
  ServerFixture fixture;
  const Answer answer = fixture.ask_both(chat_body("long", {{"ignore_eos", true}, {"max_tokens", 30}}));
  EXPECT_EQ(answer.finish[0], "length");
  EXPECT_EQ(answer.usage["completion_tokens"], 30);
}

TEST(Use1, n_choices_are_summed_and_the_prompt_counts_once) {
  ServerFixture fixture;
  const Answer answer = fixture.ask_both(chat_body("long", {{"n", 3}}));
  EXPECT_EQ(answer.text.size(), 3u);
  EXPECT_EQ(answer.usage["completion_tokens"], 3 * 21);
  EXPECT_EQ(answer.usage["prompt_tokens"], 1);
  EXPECT_EQ(answer.usage["total_tokens"], 1 + 3 * 21);
}

TEST(Use1, one_usage_chunk_before_done_and_one_reason_per_choice) {
  ServerFixture fixture;
  const Json body = chat_body("abc", {{"stream", true}, {"n", 2}, {"stream_options", {{"include_usage", true}}}});
  const auto events = sse_data(fixture.post("/v1/chat/completions", body).body);
  ASSERT_GT(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  int reasons = 0;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i]);
    EXPECT_TRUE(chunk["usage"].is_null());
    ASSERT_EQ(chunk["choices"].size(), 1u);
    reasons += chunk["choices"][0]["finish_reason"].is_null() ? 0 : 1;
  }
  EXPECT_EQ(reasons, 2);
  const Json last = Json::parse(events[events.size() - 2]);
  EXPECT_EQ(last["choices"], Json::array());
  EXPECT_EQ(last["usage"]["completion_tokens"], 12);
}

TEST(Use1, no_usage_chunk_unless_asked_for) {
  ServerFixture fixture;
  const Answer answer = fixture.ask(chat_body("abc", {{"stream", true}}));
  EXPECT_TRUE(answer.usage.is_null());
  EXPECT_EQ(answer.timings["predicted_n"], 6);
}

TEST(Use1, stream_options_need_stream) {
  ServerFixture fixture;
  const Answer answer = fixture.ask(chat_body("abc", {{"stream_options", {{"include_usage", true}}}}));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error["param"], "stream_options");
}

}  // namespace
}  // namespace tailrace::test
