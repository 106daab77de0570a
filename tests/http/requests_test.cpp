// What an operator sees of requests and does to them: GET /v1/requests, POST /abort.
#include <gtest/gtest.h>

#include "http/server_fixture.h"
#include "server/request_log.h"

namespace tailrace::test {
namespace {

FixtureOptions long_context() {
  FixtureOptions options;
  options.context_length = 1 << 20;
  return options;
}

Json requests_of(const ServerFixture& fixture, const std::string& headers = "") {
  return Json::parse(http_get(fixture.port(), "/v1/requests", headers).body);
}

HttpReply abort_of(const ServerFixture& fixture, const Json& body,
                   const std::string& headers = "") {
  return http_post(fixture.port(), "/abort", body.dump(), headers);
}

TEST(Requests, an_ended_one_is_listed_with_its_counts_and_without_its_text) {
  ServerFixture fixture;
  const HttpReply reply = http_post(fixture.port(), "/v1/chat/completions", chat_body("abc").dump(),
                                    "X-Request-Id: mine\r\n");
  const HttpReply list = http_get(fixture.port(), "/v1/requests");
  EXPECT_EQ(list.body.find("DEFG"), std::string::npos);
  const Json entry = Json::parse(list.body)["recent"][0];
  EXPECT_EQ(entry["id"], "mine");
  EXPECT_EQ(entry["answer_id"], Json::parse(reply.body)["id"]);
  EXPECT_EQ(entry["path"], "/v1/chat/completions");
  EXPECT_EQ(entry["state"], "ended");
  EXPECT_EQ(entry["status"], 200);
  EXPECT_EQ(entry["prompt_tokens"], 1);
  EXPECT_EQ(entry["completion_tokens"], Json::parse(reply.body)["usage"]["completion_tokens"]);
  EXPECT_EQ(entry["finish_reasons"], Json::array({"stop"}));
  EXPECT_TRUE(entry["ttft_ms"].is_number() && entry["duration_ms"] >= entry["ttft_ms"]);
  EXPECT_TRUE(entry["key"].is_null());
}

TEST(Requests, refused_ones_are_listed_and_other_routes_are_not) {
  ServerFixture fixture;
  fixture.post("/v1/chat/completions", chat_body("abc", {{"nonsense", 1}}));
  fixture.post("/tokenize", {{"prompt", "a"}});
  const Json list = requests_of(fixture);
  EXPECT_TRUE(list["running"].empty());
  ASSERT_EQ(list["recent"].size(), 1u);
  EXPECT_EQ(list["recent"][0]["status"], 400);
  EXPECT_TRUE(list["recent"][0]["error"].is_string());
  EXPECT_TRUE(list["recent"][0]["completion_tokens"].is_null());
}

TEST(Requests, the_list_is_bounded_and_the_latest_come_first) {
  ServerFixture fixture;
  HttpConnection connection(fixture.port());
  for (size_t i = 0; i < RequestLog::kRecent + 10; ++i) {
    connection.send_request("POST", "/v1/chat/completions", "{}",
                            "X-Request-Id: r" + std::to_string(i) + "\r\n");
    ASSERT_EQ(connection.read_reply().status, 400);
  }
  const Json recent = requests_of(fixture)["recent"];
  EXPECT_EQ(recent.size(), RequestLog::kRecent);
  EXPECT_EQ(recent[0]["id"], "r" + std::to_string(RequestLog::kRecent + 9));
}

TEST(Requests, running_ones_count_as_they_go_and_end_when_their_client_leaves) {
  ServerFixture fixture(long_context());
  fixture.engine.step_us = 1000;
  HttpConnection client(fixture.port());
  client.send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", true}}).dump(),
                      "X-Request-Id: mine\r\n");
  ASSERT_TRUE(client.read_until("again"));
  Json list = requests_of(fixture);
  ASSERT_EQ(list["running"].size(), 1u);
  EXPECT_EQ(list["running"][0]["id"], "mine");
  EXPECT_EQ(list["running"][0]["state"], "running");
  EXPECT_EQ(list["running"][0]["stream"], true);
  EXPECT_GE(list["running"][0]["completion_tokens"], 1);
  client.close();
  EXPECT_TRUE(ServerFixture::eventually([&] { return requests_of(fixture)["running"].empty(); }));
  EXPECT_EQ(requests_of(fixture)["recent"][0]["finish_reasons"], Json::array({"abort"}));
}

TEST(Abort, a_stream_ends_once_with_a_finish_of_its_own) {
  ServerFixture fixture(long_context());
  fixture.engine.step_us = 1000;
  HttpConnection client(fixture.port());
  client.send_request("POST", "/v1/chat/completions",
                      chat_body("loop", {{"stream", true}, {"n", 2}}).dump(),
                      "X-Request-Id: mine\r\n");
  ASSERT_TRUE(client.read_until("again"));
  const HttpReply aborted = abort_of(fixture, {{"request_id", "mine"}});
  EXPECT_EQ(aborted.status, 200);
  EXPECT_EQ(Json::parse(aborted.body), (Json{{"status", "ok"}, {"aborted", {"mine"}}}));
  const HttpReply reply = client.read_reply();
  ASSERT_TRUE(reply.complete);
  const auto events = sse_data(reply.body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  int ends[2] = {0, 0};
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i]);
    for (const Json& choice : chunk.at("choices")) {
      if (choice["finish_reason"] == "abort") ends[choice["index"].get<int>()]++;
    }
  }
  EXPECT_EQ(ends[0], 1);
  EXPECT_EQ(ends[1], 1);
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_cancelled == 2; }));
  EXPECT_EQ(requests_of(fixture)["recent"][0]["finish_reasons"], Json::array({"abort", "abort"}));
  EXPECT_EQ(fixture.metric("tailrace_request_success_total", "finished_reason=\"abort\""), 2);
  EXPECT_EQ(abort_of(fixture, {{"request_id", "mine"}}).status, 404);
}

TEST(Abort, a_waiting_request_gets_what_there_is) {
  ServerFixture fixture(long_context());
  fixture.engine.admitting = false;
  HttpConnection client(fixture.port());
  client.send_request("POST", "/v1/chat/completions", chat_body("loop").dump());
  ASSERT_TRUE(ServerFixture::eventually([&] { return fixture.queue.depth() == 1; }));
  const std::string id = requests_of(fixture)["running"][0]["answer_id"];
  EXPECT_EQ(requests_of(fixture)["running"][0]["state"], "waiting");
  EXPECT_EQ(abort_of(fixture, {{"request_id", id}}).status, 200);  // an answer's id does as well
  const HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body)["choices"][0]["finish_reason"], "abort");
}

TEST(Abort, all_reaches_only_the_keys_own_requests) {
  FixtureOptions options = long_context();
  options.config.http.api_keys = {"a", "b"};
  ServerFixture fixture(options);
  fixture.engine.step_us = 1000;
  const std::string alice = "Authorization: Bearer a\r\n", bob = "Authorization: Bearer b\r\n";
  HttpConnection first(fixture.port()), second(fixture.port());
  const std::string body = chat_body("loop", {{"stream", true}}).dump();
  first.send_request("POST", "/v1/chat/completions", body, alice + "X-Request-Id: same\r\n");
  second.send_request("POST", "/v1/chat/completions", body, bob + "X-Request-Id: same\r\n");
  ASSERT_TRUE(first.read_until("again"));
  ASSERT_TRUE(second.read_until("again"));
  EXPECT_EQ(requests_of(fixture, alice)["running"].size(), 1u);
  EXPECT_EQ(requests_of(fixture, alice)["running"][0]["key"], "key-1");
  EXPECT_EQ(Json::parse(abort_of(fixture, {{"all", true}}, alice).body)["aborted"].size(), 1u);
  EXPECT_TRUE(first.read_reply().complete);
  EXPECT_TRUE(requests_of(fixture, alice)["running"].empty());
  EXPECT_EQ(abort_of(fixture, {{"request_id", "same"}}, alice).status, 404);
  EXPECT_EQ(requests_of(fixture, bob)["running"].size(), 1u);
  EXPECT_TRUE(requests_of(fixture, bob)["recent"].empty());
}

TEST(Abort, what_it_takes) {
  ServerFixture fixture;
  EXPECT_EQ(Json::parse(abort_of(fixture, {{"all", true}}).body),
            (Json{{"status", "ok"}, {"aborted", Json::array()}}));
  for (const Json& body :
       {Json::object(), Json{{"all", false}}, Json{{"request_id", ""}}, Json{{"request_id", 7}},
        Json::array(), Json{{"request_id", "a"}, {"all", true}}, Json{{"rid", "a"}}}) {
    EXPECT_EQ(abort_of(fixture, body).status, 400) << body;
  }
  EXPECT_EQ(abort_of(fixture, {{"request_id", "nobody"}}).status, 404);
}

}  // namespace
}  // namespace tailrace::test
