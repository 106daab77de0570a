// POST /v1/completions: prompts of every kind, echo, what is refused; the same answer streamed or not.
#include <algorithm>
#include <thread>

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

TEST(Completions, max_tokens_0_gives_nothing_but_the_prompt) {
  ServerFixture fixture;
  // What would come is an end token of its own, and a script's text: neither is the answer's.
  for (const char* prompt : {"ab", "Say: <|s:abc|>"}) {
    for (const bool echo : {false, true}) {
      const Answer none =
          fixture.ask_both({{"prompt", prompt}, {"max_tokens", 0}, {"n", 2}, {"echo", echo}}, kPath);
      EXPECT_EQ(none.text, std::vector<std::string>(2, echo ? prompt : ""));
      EXPECT_EQ(none.finish, std::vector<std::string>(2, "length"));
      EXPECT_EQ(none.usage["completion_tokens"], 0);
      EXPECT_GT(none.usage["prompt_tokens"], 0);
    }
  }
  const Json listed = Json::parse(fixture.post(kPath, {{"prompt", "ab"}, {"max_tokens", 0}, {"logprobs", 1}}).body);
  EXPECT_EQ(listed["choices"][0]["logprobs"]["tokens"], Json::array());
  EXPECT_EQ(fixture.ask({{"prompt", "ab"}, {"max_tokens", -1}}, kPath).error["param"], "max_tokens");
  EXPECT_EQ(fixture.ask({{"prompt", "ab"}, {"max_tokens", 0}, {"min_tokens", 1}}, kPath).error["param"], "min_tokens");
  EXPECT_EQ(fixture.ask(chat_body("abc", {{"max_tokens", 0}})).error["param"], "max_tokens");
}

// By choice, what its "logprobs" say; streamed ones are joined.
std::vector<Json> listed(const ServerFixture& fixture, Json body, bool stream) {
  body["stream"] = stream;
  const HttpReply reply = fixture.post(kPath, body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  std::vector<Json> out;
  for (const std::string& document : stream ? sse_data(reply.body) : std::vector<std::string>{reply.body}) {
    if (document == "[DONE]") continue;
    const Json choices = Json::parse(document)["choices"];
    for (const Json& choice : choices) {
      out.resize(std::max(out.size(), choice["index"].get<size_t>() + 1), Json::object());
      for (const auto& [name, values] : choice["logprobs"].items()) {
        Json& joined = out[choice["index"].get<size_t>()][name];
        for (const Json& value : values) joined.push_back(value);
      }
    }
  }
  return out;
}

TEST(Completions, echo_with_logprobs_lists_the_tokens_of_the_prompt_too) {
  ServerFixture fixture;
  const Json body = {{"prompt", {"\u00e9 <|s:abc|>", "b"}}, {"echo", true}, {"logprobs", 2}, {"n", 2}};
  const Answer answer = fixture.ask_both(body, kPath);
  EXPECT_EQ(answer.text[1], "\u00e9 <|s:abc|>DEFGGHIJJKK");
  EXPECT_EQ(answer.usage["prompt_tokens"], 5);
  const std::vector<Json> whole = listed(fixture, body, false);
  EXPECT_EQ(whole, listed(fixture, body, true));
  ASSERT_EQ(whole.size(), 4u);
  EXPECT_EQ(whole[0], whole[1]);
  const Json& first = whole[0];
  EXPECT_EQ(Json(std::vector<Json>(first["tokens"].begin() + 2, first["tokens"].begin() + 5)),
            Json({" ", "<|s:abc|>", "DEF"}));
  EXPECT_EQ(first["token_bytes"][1], Json::array({0xA9}));
  EXPECT_EQ(Json(std::vector<Json>(first["text_offset"].begin(), first["text_offset"].begin() + 6)),
            Json({0, 1, 1, 2, 11, 14}));
  EXPECT_EQ(Json(std::vector<Json>(first["token_logprobs"].begin(), first["token_logprobs"].begin() + 3)),
            Json({nullptr, -0.25, -0.25}));
  EXPECT_EQ(first["top_logprobs"][0], nullptr);
  EXPECT_EQ(first["top_logprobs"][3]["<|s:abc|>"], -0.25);
  EXPECT_EQ(whole[2]["tokens"], Json({"b"}));  // its answer is an end token alone
  EXPECT_EQ(whole[2]["token_logprobs"], Json({nullptr}));
  Json none = body;
  none["max_tokens"] = 0;
  EXPECT_EQ(listed(fixture, none, true)[0]["tokens"].size(), 4u);
  EXPECT_EQ(fixture.ask_both(none, kPath).usage["completion_tokens"], 0);
}

TEST(Completions, of_prompts_no_more_tokens_are_listed_than_can_be_held) {
  ServerFixture fixture;
  Json body = {{"prompt", std::vector<std::string>(70, std::string(500, 'a'))}, {"max_tokens", 0}, {"echo", true}};
  EXPECT_EQ(fixture.ask(body, kPath).status, 200);
  body["logprobs"] = 0;
  const Answer refused = fixture.ask(body, kPath);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.error["param"], "echo");
}

TEST(Completions, what_is_aborted_while_its_prompt_is_listed_ends_once) {
  ServerFixture fixture;
  fixture.engine.step_us = 2000;
  const Json body = {{"prompt", std::string(400, 'a')}, {"echo", true}, {"logprobs", 1}, {"stream", true}};
  std::thread later([&] {
    EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_tokens > 20; }));
    EXPECT_EQ(fixture.post("/abort", {{"all", true}}).status, 200);
  });
  const Answer cut = fixture.ask(body, kPath);
  later.join();
  EXPECT_EQ(cut.fault, "");
  EXPECT_EQ(cut.text, std::vector<std::string>{std::string(400, 'a')});
  EXPECT_TRUE(cut.done);
  EXPECT_EQ(cut.finish.size(), 1u);
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_open() == 0; }));
}

TEST(Completions, what_cannot_be_done_is_refused_by_name) {
  ServerFixture fixture;
  const std::vector<std::pair<std::string, Json>> fields = {
      {"suffix", "}"}, {"best_of", 2}, {"tools", Json::array()}, {"messages", Json::array()}};
  for (const auto& [name, value] : fields) {
    EXPECT_EQ(fixture.ask({{"prompt", "x"}, {name, value}}, kPath).error["param"], name);
  }
  EXPECT_EQ(fixture.post("/v1/embeddings", {{"input", "x"}}).status, 404);
}

}  // namespace
}  // namespace tailrace::test
