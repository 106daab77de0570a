// CANC-1 at the HTTP surface: a client that leaves is noticed in every state, and its request leaves the engine.
#include <random>

#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

Json endless(bool stream) { return chat_body("loop", {{"stream", stream}, {"ignore_eos", true}}); }

struct Canc1 : testing::Test {
  Canc1() { fixture.engine.step_us = 1000; }
  static FixtureOptions one_slot() {
    FixtureOptions options;
    options.slots = 1;
    options.context_length = 1 << 20;
    return options;
  }
  bool engine_is_empty() {
    return ServerFixture::eventually([this] { return fixture.engine.num_open() == 0; });
  }
  ServerFixture fixture{one_slot()};
};

TEST_F(Canc1, while_streaming) {
  HttpConnection client(fixture.port());
  client.send_request("POST", "/v1/chat/completions", endless(true).dump());
  ASSERT_TRUE(client.read_until("again"));
  client.close();
  EXPECT_TRUE(engine_is_empty());
  EXPECT_EQ(fixture.engine.num_cancelled, 1);
  EXPECT_EQ(fixture.ask(chat_body("abc")).text[0], "DEFGGHIJJKK");
  EXPECT_EQ(fixture.metric("tailrace_request_success_total", "finished_reason=\"abort\""), 1);
}

TEST_F(Canc1, while_it_waits_for_a_whole_answer) {
  HttpConnection client(fixture.port());
  client.send_request("POST", "/v1/chat/completions", endless(false).dump());
  ASSERT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_tokens > 3; }));
  client.close();
  EXPECT_TRUE(engine_is_empty());
  EXPECT_EQ(fixture.engine.num_cancelled, 1);
}

TEST_F(Canc1, while_queued) {
  HttpConnection running(fixture.port()), queued(fixture.port());
  running.send_request("POST", "/v1/chat/completions", endless(true).dump());
  ASSERT_TRUE(running.read_until("again"));
  queued.send_request("POST", "/v1/chat/completions", endless(true).dump());
  ASSERT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_open() == 2; }));
  queued.close();
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_cancelled == 1; }));
  EXPECT_EQ(fixture.engine.num_started, 1);  // it never ran
  running.close();
  EXPECT_TRUE(engine_is_empty());
}

TEST_F(Canc1, every_choice_of_n) {
  FixtureOptions options = one_slot();
  options.slots = 4;
  ServerFixture wide(options);
  wide.engine.step_us = 1000;
  HttpConnection client(wide.port());
  Json body = endless(true);
  body["n"] = 4;
  client.send_request("POST", "/v1/chat/completions", body.dump());
  ASSERT_TRUE(client.read_until("again"));
  client.close();
  EXPECT_TRUE(ServerFixture::eventually([&] { return wide.engine.num_cancelled == 4; }));
  EXPECT_EQ(wide.engine.num_open(), 0);
}

TEST_F(Canc1, half_close_after_the_request_is_not_leaving) {
  for (const bool stream : {false, true}) {
    HttpConnection client(fixture.port());
    client.send_request("POST", "/v1/chat/completions", chat_body("long", {{"stream", stream}}).dump());
    client.shutdown_write();
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_TRUE(reply.complete);
    EXPECT_NE(reply.body.find("w19"), std::string::npos);
  }
  EXPECT_EQ(fixture.engine.num_cancelled, 0);
}

TEST_F(Canc1, a_slow_reader_is_cut_off) {
  FixtureOptions options = one_slot();
  options.config.http.max_unsent_bytes = 1 << 16;
  ServerFixture slow(options);
  HttpConnection client(slow.port());
  client.set_receive_buffer(4096);
  client.send_request("POST", "/v1/chat/completions", endless(true).dump());
  EXPECT_TRUE(ServerFixture::eventually([&] { return slow.engine.num_cancelled == 1; }));
}

TEST_F(Canc1, two_hundred_rounds_of_open_and_kill) {
  fixture.engine.step_us = 50;
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    HttpConnection client(fixture.port());
    const std::string body = endless(random() % 2 == 0).dump();
    const std::string text = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
                             "\r\n\r\n" + body;
    client.send_raw(text.substr(0, random() % 4 == 0 ? random() % text.size() : text.size()));
    if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    client.close();
  }
  EXPECT_EQ(fixture.ask(chat_body("abc")).text[0], "DEFGGHIJJKK");
  EXPECT_TRUE(engine_is_empty());
  EXPECT_TRUE(ServerFixture::eventually([this] { return fixture.server->num_active() == 0; }));
  EXPECT_TRUE(ServerFixture::eventually([this] { return fixture.queue.depth() == 0; }));
}

}  // namespace
}  // namespace tailrace::test
