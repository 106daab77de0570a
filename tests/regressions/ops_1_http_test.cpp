// OPS-1: /health says yes only when requests are answered, and answers while the engine is busy.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

std::string health_status(const ServerFixture& fixture, int expected) {
  const HttpReply reply = http_get(fixture.port(), "/health");
  EXPECT_EQ(reply.status, expected) << reply.body;
  return Json::parse(reply.body)["status"];
}

TEST(Ops1, never_200_before_a_completion_works) {
  FixtureOptions options;
  options.model_ready = false;
  ServerFixture fixture(options);
  fixture.status.load_total_bytes = 100;
  fixture.status.load_done_bytes = 25;
  EXPECT_EQ(health_status(fixture, 503), "loading");
  EXPECT_EQ(Json::parse(http_get(fixture.port(), "/health").body)["progress"], 0.25);
  EXPECT_EQ(http_get(fixture.port(), "/v1/models").status, 503);
  const HttpReply refused = fixture.post("/v1/chat/completions", chat_body("abc"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_EQ(http_get(fixture.port(), "/metrics").status, 200);
  fixture.load();
  EXPECT_EQ(health_status(fixture, 200), "ok");
  EXPECT_EQ(fixture.ask(chat_body("abc")).status, 200);
}

TEST(Ops1, busy_is_healthy) {
  FixtureOptions options;
  options.slots = 16;
  options.context_length = 1 << 20;
  ServerFixture fixture(options);
  fixture.engine.step_us = 100;
  std::vector<std::unique_ptr<HttpConnection>> streams;
  for (int i = 0; i < 64; ++i) {
    streams.push_back(std::make_unique<HttpConnection>(fixture.port()));
    streams.back()->send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", true}}).dump());
  }
  ASSERT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_open() == 64; }));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(health_status(fixture, 200), "ok");
  EXPECT_EQ(fixture.metric("tailrace_num_requests_running"), 16);
  EXPECT_EQ(fixture.metric("tailrace_num_requests_waiting"), 48);
}

TEST(Ops1, a_hung_engine_with_work_is_unhealthy_and_an_idle_one_is_not) {
  FixtureOptions options;
  options.config.limits.health_timeout_s = 0.1;
  ServerFixture fixture(options);
  ASSERT_TRUE(ServerFixture::eventually([&] { return fixture.status.idle.load(); }));
  fixture.engine.hung = true;  // stands still while idle: nobody needs it
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(health_status(fixture, 200), "ok");
  HttpConnection client(fixture.port());
  client.send_request("POST", "/v1/chat/completions", chat_body("abc").dump());
  EXPECT_TRUE(ServerFixture::eventually([&] { return http_get(fixture.port(), "/health").status == 503; }));
  EXPECT_EQ(health_status(fixture, 503), "hung");
  EXPECT_EQ(http_get(fixture.port(), "/metrics").status, 200);
  fixture.engine.hung = false;
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_TRUE(ServerFixture::eventually([&] { return http_get(fixture.port(), "/health").status == 200; }));
}

TEST(Ops1, engine_death_is_503_and_an_error_event_for_open_streams) {
  ServerFixture fixture;
  fixture.engine.step_us = 1000;
  HttpConnection client(fixture.port());
  client.send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", true}}).dump());
  ASSERT_TRUE(client.read_until("again"));
  fixture.engine.stop();
  const auto events = sse_data(client.read_reply().body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_TRUE(Json::parse(events[events.size() - 2]).contains("error"));
  EXPECT_EQ(health_status(fixture, 503), "dead");
  EXPECT_EQ(fixture.post("/v1/chat/completions", chat_body("abc")).status, 503);
}

TEST(Ops1, counters_never_decrease) {
  ServerFixture fixture;
  double last = 0;
  for (int i = 0; i < 5; ++i) {
    fixture.ask(chat_body("abc"));
    const double now = fixture.metric("tailrace_generation_tokens_total");
    EXPECT_GE(now, last + 6);
    last = now;
  }
}

}  // namespace
}  // namespace tailrace::test
