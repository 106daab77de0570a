// The engine's steps as the page and Perfetto read them: /debug/steps, /debug/trace; and the page's paths.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

StepRecord decode_step(uint64_t step) {
  return {.step = step, .num_rows = 2, .num_decode_rows = 2, .num_tokens = 2, .has_slab = false, .plan_ns = now_ns(),
          .gap = {.ns = 1500, .cause = IdleCause::kMetadata}};
}

Json steps_of(const ServerFixture& fixture, const std::string& query = "") {
  const HttpReply reply = http_get(fixture.port(), "/debug/steps" + query);
  EXPECT_EQ(reply.status, 200) << reply.body;
  return Json::parse(reply.body);
}

TEST(DebugSteps, come_once_each_and_of_many_the_newest) {
  ServerFixture fixture;
  EXPECT_TRUE(steps_of(fixture)["steps"].empty());
  for (uint64_t step = 0; step < 3; ++step) fixture.steps.add(decode_step(step));
  const Json first = steps_of(fixture);
  ASSERT_EQ(first["steps"].size(), 3u);
  EXPECT_EQ(first["next"], 3);
  const auto& fields = first["fields"];
  ASSERT_EQ(first["steps"][0].size(), fields.size());
  const auto column = [&](const char* name) { return std::find(fields.begin(), fields.end(), name) - fields.begin(); };
  EXPECT_EQ(first["steps"][2][column("step")], 2);
  EXPECT_EQ(first["steps"][2][column("decode_rows")], 2);
  EXPECT_EQ(first["steps"][2][column("slab")], 0);
  EXPECT_EQ(first["steps"][2][column("idle_ns")], 1500);
  EXPECT_EQ(first["causes"][first["steps"][2][column("idle_cause")].get<size_t>()], "metadata");
  EXPECT_TRUE(steps_of(fixture, "?since=3")["steps"].empty());
  for (uint64_t step = 3; step < 1400; ++step) fixture.steps.add(decode_step(step));
  const Json many = steps_of(fixture, "?since=3");
  ASSERT_EQ(many["steps"].size(), 1000u);
  EXPECT_EQ(many["steps"].back()[0], 1399);
  EXPECT_EQ(many["next"], 1400);
}

TEST(DebugSteps, tell_how_the_engine_stands) {
  ServerFixture fixture;
  ASSERT_EQ(fixture.ask({{"messages", {{{"role", "user"}, {"content", "abc"}}}}}).status, 200);
  const Json state = steps_of(fixture);
  EXPECT_EQ(state["engine"]["ready"], true);
  EXPECT_GT(state["engine"]["generated_tokens"], 0);
  EXPECT_EQ(state["engine"]["kv"].size(), static_cast<size_t>(fixture.status.num_kv_groups.load()));
  EXPECT_EQ(state["ttft_ms"]["count"], 1);
  EXPECT_GT(state["ttft_ms"]["p50"], 0);
}

TEST(DebugSteps, a_bad_query_is_named) {
  ServerFixture fixture;
  for (const char* query : {"?since=", "?since=x", "?since=-1", "?since=1x", "?since", "?until=3", "?since=1&x=2",
                            "?since=99999999999999999999999"}) {
    const HttpReply reply = http_get(fixture.port(), std::string("/debug/steps") + query);
    EXPECT_EQ(reply.status, 400) << query;
    EXPECT_FALSE(Json::parse(reply.body)["error"]["param"].get<std::string>().empty()) << query;
  }
  for (const char* query : {"", "?seconds=0", "?seconds=61", "?seconds=1.5", "?since=1"}) {
    EXPECT_EQ(http_get(fixture.port(), std::string("/debug/trace") + query).status, 400) << query;
  }
}

// A client whose trace is being taken.
std::unique_ptr<HttpConnection> begin_trace(const ServerFixture& fixture, const std::string& seconds) {
  for (;;) {
    auto client = std::make_unique<HttpConnection>(fixture.port());
    client->send_request("GET", "/debug/trace?seconds=" + seconds);
    if (http_get(fixture.port(), "/debug/trace?seconds=1").status == 409) return client;
  }  // the second one was faster, and has ended
}

TEST(DebugTrace, holds_the_steps_of_its_time_and_one_is_taken_at_a_time) {
  ServerFixture fixture;
  fixture.steps.add(decode_step(1));
  const auto tracing = begin_trace(fixture, "1");
  fixture.steps.add(decode_step(2));
  const HttpReply reply = tracing->read_reply();
  ASSERT_EQ(reply.status, 200);
  const Json trace = Json::parse(reply.body);
  int events = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_EQ(event["args"]["step"], 2);
    ++events;
  }
  EXPECT_EQ(events, 5);  // plan, launch, process; the idle time, the step
}

TEST(DebugTrace, a_client_that_leaves_makes_room) {
  ServerFixture fixture;
  begin_trace(fixture, "60").reset();
  HttpReply reply;
  ASSERT_TRUE(ServerFixture::eventually([&] {
    reply = http_get(fixture.port(), "/debug/trace?seconds=1");
    return reply.status != 409;
  }));
  EXPECT_EQ(reply.status, 200);
}

TEST(DebugTrace, the_end_of_the_server_does_not_wait_for_it) {
  ServerFixture fixture;
  const auto tracing = begin_trace(fixture, "60");
  EXPECT_TRUE(fixture.server->drain(std::chrono::seconds(20)));
  EXPECT_EQ(tracing->read_reply().status, 200);  // with what it had
}

TEST(Page, needs_no_key_and_debug_routes_do) {
  FixtureOptions options;
  options.config.http.api_keys = {"secret"};
  options.model_ready = false;
  options.page = {{"/", "text/html; charset=utf-8", "<!doctype html>", ""}};
  ServerFixture fixture(options);
  const HttpReply page = http_get(fixture.port(), "/?from=bookmark");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.body, "<!doctype html>");
  EXPECT_EQ(page.headers.count("content-security-policy"), 1u);
  EXPECT_EQ(http_get(fixture.port(), "/debug/steps").status, 401);
  EXPECT_EQ(http_get(fixture.port(), "/debug/trace?seconds=1").status, 401);
  EXPECT_EQ(http_get(fixture.port(), "/debug/steps", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(http_get(fixture.port(), "/debug/trace?seconds=1", "Authorization: Bearer secret\r\n").status, 503);
}

}  // namespace
}  // namespace tailrace::test
