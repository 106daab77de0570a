// Hostile clients beside honest ones: whatever they do, others are answered, and what they took
// comes back.
#include <sys/resource.h>

#include "base/heap.h"
#include "base/process_memory.h"
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

using Connections = std::vector<std::unique_ptr<HttpConnection>>;
constexpr int64_t kMiB = int64_t{1} << 20;

// The client's ends are in this process too.
bool allow_files(rlim_t count) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= count) return true;
  limit.rlim_cur = std::min(count, limit.rlim_max);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= count;
}

int64_t resident_bytes() { return read_process_memory().resident_bytes; }

// An honest client: a whole answer, streamed and not, and health.
void expect_served(const ServerFixture& fixture) {
  EXPECT_EQ(fixture.ask(chat_body("abc")).text.at(0), "DEFGGHIJJKK");
  EXPECT_EQ(fixture.ask(chat_body("abc", {{"stream", true}})).text.at(0), "DEFGGHIJJKK");
  EXPECT_EQ(http_get(fixture.port(), "/health").status, 200);
}

size_t requests_running(const ServerFixture& fixture) {
  return Json::parse(http_get(fixture.port(), "/v1/requests").body)["running"].size();
}

TEST(HostileClients, two_thousand_idle_connections) {
  constexpr int kIdle = 2000;
  if (!allow_files(2 * kIdle + 200)) GTEST_SKIP() << "too few file descriptors";
  ServerFixture fixture;
  expect_served(fixture);
  return_free_heap();
  const int64_t before = resident_bytes();
  {
    Connections idle;
    for (int i = 0; i < kIdle; ++i) {
      idle.push_back(std::make_unique<HttpConnection>(fixture.port()));
      ASSERT_TRUE(idle.back()->send_request("GET", "/v1/models"));
      ASSERT_EQ(idle.back()->read_reply().status, 200) << i;
    }
    EXPECT_GE(fixture.metric("tailrace_http_connections"), kIdle);
    expect_served(fixture);
    idle[kIdle / 2]->send_request("GET", "/v1/models");  // and they themselves
    EXPECT_EQ(idle[kIdle / 2]->read_reply().status, 200);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(resident_bytes() - before, kIdle * (32 << 10)) << "bytes for each of them";
#endif
  }
  EXPECT_TRUE(
      ServerFixture::eventually([&] { return fixture.metric("tailrace_http_connections") <= 2; }));
  expect_served(fixture);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  return_free_heap();
  EXPECT_LT(resident_bytes(), before + 16 * kMiB);
#endif
}

TEST(HostileClients, more_silent_connections_than_there_may_be) {
  constexpr int kSilent = 2200, kMost = 500;
  if (!allow_files(kSilent + kMost + 400)) GTEST_SKIP() << "too few file descriptors";
  FixtureOptions options;
  options.config.http.max_connections = kMost;
  options.config.http.header_timeout_s = 600;  // none goes by itself
  ServerFixture fixture(options);
  {
    Connections silent;
    for (int i = 0; i < kSilent; ++i) {
      silent.push_back(std::make_unique<HttpConnection>(fixture.port()));
      if (i % 2 == 0) silent.back()->send_raw("GET /v1/models HTTP/1.1\r\nHost:");
      if (i % 400 == 0) expect_served(fixture);
    }
    expect_served(fixture);
    EXPECT_LE(fixture.metric("tailrace_http_connections"), kMost);
    EXPECT_TRUE(silent.front()->wait_closed());
  }
  EXPECT_TRUE(
      ServerFixture::eventually([&] { return fixture.metric("tailrace_http_connections") <= 2; }));
}

TEST(HostileClients, heads_that_trickle_in_are_given_up_and_hold_nobody_up) {
  FixtureOptions options;
  options.config.http.header_timeout_s = 1;
  ServerFixture fixture(options);
  Connections slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(std::make_unique<HttpConnection>(fixture.port()));
    slow.back()->send_raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-");
  }
  expect_served(fixture);
  // Each byte is new, and none gives it more time: also not one that arrives in the very moment.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1200);
  while (std::chrono::steady_clock::now() < until) {
    for (auto& connection : slow) connection->send_raw("a");
  }
  for (auto& connection : slow) {
    EXPECT_EQ(connection->read_reply().status, 408);
    EXPECT_TRUE(connection->wait_closed());
  }
  expect_served(fixture);
}

TEST(HostileClients, bodies_that_trickle_in_take_no_more_than_they_sent) {
  FixtureOptions options;
  options.config.http.body_timeout_s = 1;
  ServerFixture fixture(options);
  Connections slow;
  for (int i = 0; i < 50; ++i) {
    slow.push_back(std::make_unique<HttpConnection>(fixture.port()));
    slow.back()->send_raw(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 33554432\r\n\r\n{");
  }
  expect_served(fixture);  // 50 x 32 MiB are promised, of 512 there may be
  for (auto& connection : slow) EXPECT_EQ(connection->read_reply().status, 408);
  EXPECT_TRUE(
      ServerFixture::eventually([&] { return fixture.metric("tailrace_http_body_bytes") == 0; }));
}

// Sanitizers take a minute and a half for 50 MB: there all of it is smaller and the engine slower, alike.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kShrink = 16;
#else
constexpr int kShrink = 1;
#endif

TEST(HostileClients, a_body_of_50_mb_beside_a_stream) {
  FixtureOptions options;
  options.context_length = (1 << 16) / kShrink;  // no text of 50 MB fits it, which is known without tokenizing
  options.config.http.max_body_bytes = 64 * kMiB;
  ServerFixture fixture(options);
  fixture.engine.step_us = 500 * kShrink;
  HttpConnection stream(fixture.port());
  stream.send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", true}}).dump());
  ASSERT_TRUE(stream.read_until("again"));
  const int tokens = fixture.engine.num_tokens;
  std::string body = R"({"messages":[{"role":"user","content":")";
  body.append(50'000'000 / kShrink, 'x').append("\"}]}");
  const HttpReply reply = http_post(fixture.port(), "/v1/chat/completions", body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "context_length_exceeded");
  EXPECT_GT(fixture.engine.num_tokens, tokens);
  EXPECT_TRUE(ServerFixture::eventually([&] { return requests_running(fixture) == 1u; }));  // the stream
  body.clear();
  body.shrink_to_fit();
  EXPECT_TRUE(
      ServerFixture::eventually([&] { return fixture.metric("tailrace_http_body_bytes") == 0; }));
  expect_served(fixture);
}

// Each token is some bytes of the answer.
Json endless(int top_logprobs) {
  return chat_body("loop", {{"stream", true}, {"ignore_eos", true}, {"logprobs", true}, {"top_logprobs", top_logprobs}});
}

TEST(HostileClients, readers_that_stop_while_the_engine_runs_at_full_speed) {
  FixtureOptions options;
  options.context_length = 1 << 15;  // tens of MB of events, more than sockets and server hold
  ServerFixture fixture(options);
  Connections stopped;
  for (int i = 0; i < 6; ++i) {
    stopped.push_back(std::make_unique<HttpConnection>(fixture.port()));
    stopped.back()->set_receive_buffer(4096);
    stopped.back()->send_request("POST", "/v1/chat/completions", endless(8).dump());
  }
  expect_served(fixture);
  EXPECT_TRUE(ServerFixture::eventually(
      [&] { return fixture.metric("tailrace_request_success_total", "finished_reason=\"abort\"") == 6; }));
  // Not seen by the clients, who would have to read what the sockets still hold.
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.metric("tailrace_http_connections") <= 2; }));
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_open() == 0 && requests_running(fixture) == 0; }));
  expect_served(fixture);
}

// Else one stream keeps a thread of the sockets for as long as it takes to write all that the engine has got ahead of it meanwhile.
TEST(HostileClients, a_turn_of_one_stream_is_short_however_far_the_engine_is_ahead) {
  FixtureOptions options;
  options.context_length = 1 << 20;
  options.config.http.max_unsent_bytes = int64_t{1} << 30;
  ServerFixture fixture(options);
  HttpConnection client(fixture.port());
  Json body = endless(0);
  body["max_tokens"] = 20'000;
  client.send_request("POST", "/v1/chat/completions", body.dump());
  ASSERT_TRUE(client.read_until("\r\n0\r\n\r\n"));
  size_t tokens = 0, longest = 0;
  const std::string& raw = client.raw();
  for (size_t at = raw.find("\r\n\r\n") + 4; at < raw.size();) {
    const size_t size = std::strtoul(raw.c_str() + at, nullptr, 16), begin = raw.find("\r\n", at) + 2;
    size_t held = 0;
    for (size_t token = raw.find("\"bytes\":", begin); token < begin + size; token = raw.find("\"bytes\":", token + 1)) ++held;
    tokens += held;
    longest = std::max(longest, held);
    at = begin + size + 2;
  }
  EXPECT_EQ(tokens, 20'000u);
  EXPECT_LE(longest, 256u);
}

TEST(HostileClients, ten_thousand_brackets) {
  ServerFixture fixture;
  for (const char bracket : {'[', '{'}) {
    std::string nested = bracket == '[' ? std::string(10'000, '[') : std::string();
    for (int i = 0; bracket == '{' && i < 10'000; ++i) nested += "{\"a\":";
    for (const char* path :
         {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/abort"}) {
      EXPECT_EQ(http_post(fixture.port(), path, nested).status, 400) << path;
      EXPECT_EQ(http_post(fixture.port(), path, "{\"messages\":" + nested).status, 400) << path;
    }
  }
  expect_served(fixture);
}

}  // namespace
}  // namespace tailrace::test
