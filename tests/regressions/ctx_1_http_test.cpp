// CTX-1: prompts at and past the context are answered or refused with exact numbers, never cut.
#include <chrono>

#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

constexpr int kContext = 512;

// Prompt of n tokens whose answer never ends by itself.
Json completion(int n, const Json& more) {
  Json body = {{"prompt", std::string(n, 'a')}, {"ignore_eos", true}, {"temperature", 0}};
  for (const auto& [key, value] : more.items()) body[key] = value;
  return body;
}

void expect_refused(const Answer& answer, int prompt) {
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error["type"], "invalid_request_error");
  EXPECT_EQ(answer.error["code"], "context_length_exceeded");
  EXPECT_EQ(answer.error["param"], "prompt");
  const auto message = answer.error["message"].get<std::string>();
  EXPECT_NE(message.find("512"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(prompt)), std::string::npos) << message;
}

TEST(Ctx1, prompts_around_the_limit) {
  ServerFixture fixture;
  for (const int prompt : {1, 510, 511, 512, 513, 2000}) {
    for (const int max_tokens : {0, 1, 2, 600}) {  // 0: absent
      const Json more = max_tokens == 0 ? Json::object() : Json{{"max_tokens", max_tokens}};
      const Answer answer = fixture.ask_both(completion(prompt, more), "/v1/completions");
      if (prompt >= kContext || prompt + max_tokens > kContext) {
        expect_refused(answer, prompt);
        continue;
      }
      EXPECT_EQ(answer.status, 200);
      EXPECT_EQ(answer.finish[0], "length");
      EXPECT_EQ(answer.usage["prompt_tokens"], prompt);
      EXPECT_EQ(answer.usage["completion_tokens"], max_tokens == 0 ? kContext - prompt : max_tokens);
    }
  }
}

TEST(Ctx1, prompt_as_ids) {
  ServerFixture fixture;
  Json ids = Json::array();
  for (int i = 0; i < 511; ++i) ids.push_back('a');
  EXPECT_EQ(fixture.ask({{"prompt", ids}, {"max_tokens", 1}}, "/v1/completions").usage["prompt_tokens"], 511);
  ids.push_back('a');
  expect_refused(fixture.ask({{"prompt", ids}, {"max_tokens", 1}}, "/v1/completions"), 512);
}

TEST(Ctx1, chat_names_messages) {
  ServerFixture fixture;
  const Answer answer = fixture.ask(chat_body(std::string(513, 'a')));
  EXPECT_EQ(answer.error["code"], "context_length_exceeded");
  EXPECT_EQ(answer.error["param"], "messages");
}

TEST(Ctx1, a_hopeless_prompt_is_refused_without_tokenizing_it) {
  ServerFixture fixture;
  const Answer answer = fixture.ask(completion(20 << 20, Json::object()), "/v1/completions");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error["code"], "context_length_exceeded");
}

TEST(Ctx1, a_prompt_that_no_pool_holds_is_refused_by_the_engine_and_waits_for_nothing) {
  ServerFixture fixture;
  fixture.engine.pool_tokens = 100;
  const Answer answer = fixture.ask_both(completion(101, {{"max_tokens", 1}}), "/v1/completions");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error["type"], "invalid_request_error");
  EXPECT_EQ(answer.error["code"], "context_length_exceeded");
  EXPECT_NE(answer.error["message"].get<std::string>().find("KV pool"), std::string::npos);
  EXPECT_EQ(fixture.ask(completion(100, {{"max_tokens", 1}}), "/v1/completions").status, 200);
}

TEST(Ctx1, refusals_do_not_touch_a_running_stream) {
  ServerFixture fixture;
  fixture.engine.step_us = 1000;
  HttpConnection stream(fixture.port());
  stream.send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", true}, {"max_tokens", 200}}).dump());
  ASSERT_TRUE(stream.read_until("again"));
  for (int i = 0; i < 20; ++i) expect_refused(fixture.ask(completion(513, Json::object()), "/v1/completions"), 513);
  const HttpReply reply = stream.read_reply();
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(sse_data(reply.body).back(), "[DONE]");
}

}  // namespace
}  // namespace tailrace::test
