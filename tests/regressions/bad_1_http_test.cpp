// BAD-1: values that pass JSON but break engines. Every answer is 200 or 4xx, and nobody else notices.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

const std::string kStart = R"({"model":"m","messages":[{"role":"user","content":"abc"}],)";

// A stream that runs while others send rubbish.
class Bad1 : public testing::Test {
 protected:
  Bad1() {
    fixture.engine.step_us = 500;
    stream.send_request("POST", "/v1/chat/completions",
                        chat_body("loop", {{"stream", true}, {"max_tokens", 500}}).dump());
    EXPECT_TRUE(stream.read_until("again"));
  }
  ~Bad1() override {
    const HttpReply reply = stream.read_reply();
    EXPECT_TRUE(reply.complete);
    EXPECT_EQ(sse_data(reply.body).back(), "[DONE]");
    EXPECT_EQ(reply.body.find("error"), std::string::npos);
  }

  void expect(int status, const std::string& body, const std::string& param = "") {
    const HttpReply reply = http_post(fixture.port(), "/v1/chat/completions", body);
    EXPECT_EQ(reply.status, status) << body.substr(0, 200) << "\n" << reply.body;
    EXPECT_EQ(http_get(fixture.port(), "/health").status, 200);
    if (status == 200) return;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_TRUE(error["message"].is_string() && error["type"].is_string() && error.contains("code"));
    if (!param.empty()) {
      EXPECT_EQ(error["param"], param) << body.substr(0, 200);
    }
  }

  ServerFixture fixture;
  HttpConnection stream{fixture.port()};
};

TEST_F(Bad1, numbers_of_the_report) {
  for (const char* value : {"1e999", "-1e999", "NaN", "\"0.5\"", "true", "[]", "{}", "-1"}) {
    expect(400, kStart + "\"temperature\":" + value + "}", "temperature");
  }
  expect(200, kStart + "\"temperature\":null}");
  expect(200, kStart + "\"temperature\":1e-9}");
  for (const char* value : {"0", "2"}) expect(400, kStart + "\"top_p\":" + value + "}", "top_p");
  for (const char* value : {"0", "-1", "1000000", "2.5"}) expect(400, kStart + "\"n\":" + value + "}", "n");
  for (const char* value : {"0", "-5", "9e18"}) expect(400, kStart + "\"max_tokens\":" + value + "}", "max_tokens");
  for (const char* value : {R"({"999999":1})", R"({"-1":1})", R"({"x":1})", R"({"1":1e999})", R"({"1":NaN})"}) {
    expect(400, kStart + "\"logit_bias\":" + value + "}", "logit_bias");
  }
}

TEST_F(Bad1, shapes_of_the_report) {
  expect(400, R"({"messages":[]})", "messages");
  expect(400, R"({"messages":null})", "messages");
  expect(400, R"({"messages":[{}]})", "messages[0].role");
  expect(400, R"({"messages":[{"role":"user"}]})", "messages[0].content");
  expect(400, R"({"messages":[{"role":"user","content":5}]})", "messages[0].content");
  expect(400, kStart + R"("stream":"yes"})", "stream");
  expect(400, kStart + R"("stop":{}})", "stop");
  expect(200, kStart + R"("tools":null,"tool_choice":null})");
  expect(200, kStart + R"("tools":[],"tool_choice":null})");
  expect(400, kStart + R"("tool_choice":"required"})", "tool_choice");
  expect(400, kStart + R"("n":1,"n":1})", "n");
  expect(400, "\xff\xfe");
  expect(400, "");
}

TEST_F(Bad1, a_stream_that_fails_validation_closes) {
  expect(400, kStart + R"("stream":true,"n":0})", "n");
}

TEST_F(Bad1, content_length_that_is_too_short) {
  HttpConnection connection(fixture.port());
  const std::string body = kStart + "\"n\":1}";
  connection.send_raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n" + body);
  EXPECT_EQ(connection.read_reply().status, 400);
}

TEST_F(Bad1, a_body_of_100_mb_is_413) {
  HttpConnection connection(fixture.port());
  connection.send_raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n");
  const std::string part(1 << 20, ' ');
  for (int i = 0; i < 100 && connection.send_raw(part); ++i) {
  }
  const HttpReply reply = connection.read_reply();
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "too_large");
}

TEST_F(Bad1, nesting_and_member_bounds) {
  expect(400, std::string(100000, '['));
  expect(400, kStart + "\"metadata\":" + std::string(1000, '[') + std::string(1000, ']') + "}", "metadata");
  std::string members;
  for (int i = 0; i < 70000; ++i) members += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
  expect(400, kStart + "\"logit_bias\":{" + members + "}}", "logit_bias");
}

}  // namespace
}  // namespace tailrace::test
