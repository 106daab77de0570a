// POST /v1/completions: prompts of every kind, echo, what is refused; the same answer streamed or not.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

constexpr const char* kPath = "/v1/completions";

TEST(Completions, echo_puts_the_prompt_before_each_text) {
  ServerFixture fixture;
  const TokenId trigger = *fixture.text.text->tokenizer->token_to_id("<|s:abc|>");
  Json body = {{"prompt", "Say: <|s:abc|>"}, {"echo", true}, {"temperature", 0}};
  EXPECT_EQ(fixture.ask_both(body, kPath).text[0], "Say: <|s:abc|>DEFGGHIJJKK");
  body["prompt"] = Json::array({'x', trigger});
  EXPECT_EQ(fixture.ask_both(body, kPath).text[0], "x<|s:abc|>DEFGGHIJJKK");
  body["prompt"] = Json::array({"a<|s:abc|>", "b<|s:emoji|>"});
  body["n"] = 2;
  const Answer four = fixture.ask_both(body, kPath);
  ASSERT_EQ(four.text.size(), 4u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(four.text[i], "a<|s:abc|>DEFGGHIJJKK");
    EXPECT_EQ(four.text[2 + i], "b<|s:emoji|> ok \xf0\x9f\x8e\x89!!");
  }
  body["echo"] = false;
  EXPECT_EQ(fixture.ask_both(body, kPath).text[0], "DEFGGHIJJKK");
}

TEST(Completions, what_cannot_be_done_is_refused_by_name) {
  ServerFixture fixture;
  const std::vector<std::pair<std::string, Json>> fields = {
      {"suffix", "}"}, {"best_of", 2}, {"tools", Json::array()}, {"messages", Json::array()}};
  for (const auto& [name, value] : fields) {
    EXPECT_EQ(fixture.ask({{"prompt", "x"}, {name, value}}, kPath).error["param"], name);
  }
  EXPECT_EQ(fixture.ask({{"prompt", "x"}, {"echo", true}, {"logprobs", 1}}, kPath).error["param"], "echo");
  EXPECT_EQ(fixture.post("/v1/embeddings", {{"input", "x"}}).status, 404);
}

}  // namespace
}  // namespace tailrace::test
