// SHD-1: draining neither loses replies nor waits for ever.
#include <chrono>
#include <future>

#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

using std::chrono::milliseconds;

// The one error object of a server that ends, whatever part of it noticed.
const Json kShuttingDown = {{"message", "The server is shutting down."},
                            {"type", "service_unavailable_error"},
                            {"param", nullptr},
                            {"code", "shutting_down"}};

TEST(Shd1, running_replies_complete) {
  ServerFixture fixture;
  fixture.engine.step_us = 2000;
  std::vector<std::unique_ptr<HttpConnection>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<HttpConnection>(fixture.port()));
    clients.back()->send_request("POST", "/v1/chat/completions", chat_body("long", {{"stream", i % 2 == 0}}).dump());
  }
  ASSERT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_open() == 8; }));
  auto drained = std::async(std::launch::async, [&] { return fixture.server->drain(milliseconds(20000)); });
  for (int i = 0; i < 8; ++i) {
    const HttpReply reply = clients[i]->read_reply();
    EXPECT_TRUE(reply.complete);
    EXPECT_NE(reply.body.find("w19"), std::string::npos);
    EXPECT_EQ(reply.body.find("error"), std::string::npos);
  }
  EXPECT_TRUE(drained.get());
}

TEST(Shd1, not_ready_and_refusing_while_draining) {
  FixtureOptions options;
  options.context_length = 1 << 20;
  ServerFixture fixture(options);
  fixture.engine.step_us = 1000;
  HttpConnection running(fixture.port());
  running.send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", true}}).dump());
  ASSERT_TRUE(running.read_until("again"));
  auto drained = std::async(std::launch::async, [&] { return fixture.server->drain(milliseconds(20000)); });
  ASSERT_TRUE(ServerFixture::eventually([&] { return http_get(fixture.port(), "/health").status == 503; }));
  const HttpReply refused = fixture.post("/v1/chat/completions", chat_body("abc"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(Json::parse(refused.body)["error"], kShuttingDown);
  running.close();
  EXPECT_TRUE(drained.get());
}

TEST(Shd1, at_the_limit_each_gets_an_error) {
  FixtureOptions options;
  options.context_length = 1 << 20;
  ServerFixture fixture(options);
  fixture.engine.step_us = 1000;
  std::vector<std::unique_ptr<HttpConnection>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<HttpConnection>(fixture.port()));
    clients.back()->send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", i % 2 == 0}}).dump());
  }
  ASSERT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_open() == 8; }));
  for (int i = 0; i < 8; i += 2) ASSERT_TRUE(clients[i]->read_until("again"));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(fixture.server->drain(milliseconds(200)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(2000));
  for (int i = 0; i < 8; ++i) {
    const HttpReply reply = clients[i]->read_reply();
    EXPECT_TRUE(reply.complete);
    if (i % 2 == 0) {
      const auto events = sse_data(reply.body);
      EXPECT_EQ(events.back(), "[DONE]");
      EXPECT_EQ(Json::parse(events[events.size() - 2])["error"], kShuttingDown);
    } else {
      EXPECT_EQ(reply.status, 503);
      EXPECT_EQ(Json::parse(reply.body)["error"], kShuttingDown);
    }
  }
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_cancelled == 8; }));
}

TEST(Shd1, the_engine_that_ends_says_the_same) {
  FixtureOptions options;
  options.context_length = 1 << 20;
  ServerFixture fixture(options);
  fixture.engine.step_us = 1000;
  HttpConnection running(fixture.port());
  running.send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", true}}).dump());
  ASSERT_TRUE(running.read_until("again"));
  fixture.queue.close();  // before the server drains, as an engine that fails does
  const Answer refused = fixture.ask(chat_body("abc"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.error, kShuttingDown);
  fixture.engine.stop();
  const auto events = sse_data(running.read_reply().body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"], kShuttingDown);
}

TEST(Shd1, idle_connections_do_not_delay) {
  ServerFixture fixture;
  HttpConnection kept(fixture.port());
  kept.send_request("GET", "/health");
  EXPECT_EQ(kept.read_reply().status, 200);
  std::vector<std::unique_ptr<HttpConnection>> silent;  // some of them not yet accepted
  for (int i = 0; i < 50; ++i) silent.push_back(std::make_unique<HttpConnection>(fixture.port()));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(fixture.server->drain(milliseconds(20000)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(2000));
  EXPECT_TRUE(kept.wait_closed());
}

TEST(Shd1, while_loading) {
  FixtureOptions options;
  options.model_ready = false;
  ServerFixture fixture(options);
  EXPECT_TRUE(fixture.server->drain(milliseconds(20000)));
  fixture.server->stop();
}

TEST(Shd1, stop_without_drain_ends_open_requests) {
  FixtureOptions options;
  options.context_length = 1 << 20;
  ServerFixture fixture(options);
  fixture.engine.step_us = 1000;
  HttpConnection client(fixture.port());
  client.send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", true}}).dump());
  ASSERT_TRUE(client.read_until("again"));
  fixture.server->stop();
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_cancelled == 1; }));
}

}  // namespace
}  // namespace tailrace::test
