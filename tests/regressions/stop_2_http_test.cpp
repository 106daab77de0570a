// STOP-2: stop strings apply to the content alone, and their hold-back never shifts the end of the reasoning.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

FixtureOptions thinking() {
  FixtureOptions options;
  options.config.model.reasoning_parser = ReasoningFormat::kQwen3;
  options.scripts = parser_scripts();
  return options;
}

TEST(Stop2, a_stop_string_in_the_reasoning_stops_nothing) {
  ServerFixture fixture(thinking());
  const Answer answer = fixture.ask_both(chat_body("think", {{"stop", {"Question:"}}}));
  EXPECT_EQ(answer.reasoning[0], "I restate: Question: how many? Done.");
  EXPECT_EQ(answer.text[0], "Answer 42");
  EXPECT_EQ(answer.finish[0], "stop");
  EXPECT_EQ(answer.usage["completion_tokens"], 8);
}

TEST(Stop2, a_stop_string_in_the_content_stops_there) {
  ServerFixture fixture(thinking());
  const Answer answer = fixture.ask_both(chat_body("think", {{"stop", {"Answer"}}}));
  EXPECT_EQ(answer.reasoning[0], "I restate: Question: how many? Done.");
  EXPECT_EQ(answer.text[0], "");
  EXPECT_EQ(answer.finish[0], "stop");
  EXPECT_EQ(answer.usage["completion_tokens"], 6);
}

TEST(Stop2, a_beginning_of_a_stop_string_does_not_hold_the_end_of_the_reasoning_back) {
  ServerFixture fixture(thinking());
  const Answer answer = fixture.ask_both(chat_body("think", {{"stop", {"Done.</think>", "Done. Answer", "42!"}}}));
  EXPECT_EQ(answer.reasoning[0], "I restate: Question: how many? Done.");
  EXPECT_EQ(answer.text[0], "Answer 42");
}

TEST(Stop2, completions_are_one_text) {
  ServerFixture fixture(thinking());
  const Answer answer =
      fixture.ask_both({{"prompt", "<|s:think|>"}, {"temperature", 0}, {"stop", {"Question:"}}}, "/v1/completions");
  EXPECT_EQ(answer.text[0], "I restate: ");
}

TEST(Stop2, reasoning_that_max_tokens_cuts_is_reasoning) {
  ServerFixture fixture(thinking());
  const Answer answer = fixture.ask_both(chat_body("think", {{"max_tokens", 3}}));
  EXPECT_EQ(answer.reasoning[0], "I restate: Question: how many?");
  EXPECT_EQ(answer.text[0], "");
  EXPECT_EQ(answer.finish[0], "length");
}

}  // namespace
}  // namespace tailrace::test
