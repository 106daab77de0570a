// MEM-1's rule for the HTTP surface: what hostile bodies make the server allocate is bounded, and given back.
#include "base/heap.h"
#include "base/process_memory.h"
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t resident_bytes() { return read_process_memory().resident_bytes; }

std::string many(const std::string& before, const std::string& unit, int count, const std::string& after) {
  std::string body = before;
  for (int i = 0; i < count; ++i) body += unit;
  return body + after;
}

// Without a copy of the body.
HttpReply post_whole(uint16_t port, const std::string& path, const std::string& body) {
  HttpConnection connection(port);
  connection.send_raw("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n");
  connection.send_raw(body);
  return connection.read_reply();
}

TEST(HostileBodies, leave_no_memory_behind) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer keeps what is freed";
#endif
  ServerFixture fixture;
  const std::string chat = R"({"messages":[{"role":"user","content":"abc"}],)";
  const std::vector<std::pair<std::string, std::string>> bodies = {
      {"/v1/completions", many(R"({"prompt":[)", "0,", 800'000, "0]}")},
      {"/v1/completions", many(R"({"prompt":[)", R"({"a":""},)", 200'000, "0]}")},
      {"/v1/completions", many(R"({"prompt":"a","stop":[)", R"("",)", 500'000, "\"\"]}")},
      {"/v1/chat/completions", many(chat + R"("chat_template_kwargs":{"x":[)", R"({"a":""},)", 200'000, "0]}}")},
      {"/tokenize", many(R"({"prompt":")", "word ", 2'000'000, "\"}")}};
  fixture.ask(chat_body("abc"));
  return_free_heap();
  const int64_t before = resident_bytes();
  std::atomic<int64_t> highest{before};
  std::atomic<bool> over{false};
  std::thread watcher([&] {
    while (!over) {
      highest = std::max(highest.load(), resident_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (const auto& [path, body] : bodies) {
    std::vector<std::thread> clients;
    std::atomic<int> refused{0};
    for (int i = 0; i < 2; ++i) {
      clients.emplace_back([&, &path = path, &body = body] {
        refused += post_whole(fixture.port(), path, body).status / 100 == 4;
      });
    }
    for (auto& client : clients) client.join();
    EXPECT_EQ(refused.load(), 2) << path;
  }
  over = true;
  watcher.join();
  EXPECT_GT(highest, before + 16 * kMiB) << "else there is nothing to give back";
  EXPECT_TRUE(ServerFixture::eventually([&] { return resident_bytes() < before + 16 * kMiB; }))
      << (resident_bytes() - before) / kMiB << " MiB stay";
}

FixtureOptions seven_mebibytes() {
  FixtureOptions options;
  options.config.http.max_body_bytes = 4 * kMiB;
  options.config.http.max_total_body_bytes = 7 * kMiB;
  return options;
}

TEST(HostileBodies, what_is_parsed_from_them_counts_as_they_do) {
  ServerFixture fixture(seven_mebibytes());
  const std::string wide = many(R"({"prompt":[)", "0,", 1'000'000, "0]}");  // 2 MB, and 32 when parsed
  const HttpReply alone = post_whole(fixture.port(), "/v1/completions", wide);
  EXPECT_EQ(alone.status, 413);
  EXPECT_NE(alone.body.find("--max-total-body-bytes (7340032)"), std::string::npos) << alone.body;
  EXPECT_TRUE(ServerFixture::eventually(  // a worker lets go of the last body a moment after its answer
      [&] { return fixture.ask(chat_body("abc")).status == 200; }));
}

TEST(HostileBodies, what_is_parsed_waits_for_what_others_hold) {
  ServerFixture fixture(seven_mebibytes());
  const std::string fits = many(R"({"prompt":[)", "0,", 150'000, "0]}");  // 0.3 MB, and 5 when parsed
  {
    // First, while nothing is held: with another's body it could be refused itself.
    HttpConnection arriving(fixture.port());
    arriving.send_raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n" + std::string(3'900'000, ' '));
    // What is only announced takes nothing; it is refused by its length once more than 3 MiB of the first have arrived.
    ASSERT_TRUE(ServerFixture::eventually([&] {
      HttpConnection announced(fixture.port());
      announced.send_raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4194304\r\n\r\n");
      return announced.read_until("\r\n\r\n") && announced.raw().find(" 503 ") != std::string::npos;
    }));
    const HttpReply beside = post_whole(fixture.port(), "/v1/completions", fits);
    EXPECT_EQ(beside.status, 503);
    EXPECT_EQ(beside.headers.count("retry-after"), 1u);
  }
  EXPECT_TRUE(ServerFixture::eventually([&] {  // too long a prompt, once there is room to read it
    return post_whole(fixture.port(), "/v1/completions", fits).status == 400;
  }));
}

// Stored items are given as they stand, not parsed: a page takes no more than its bytes, and those count as a body's
// do.
TEST(HostileBodies, what_is_listed_of_stored_ones_counts_as_they_do) {
  ServerFixture fixture(seven_mebibytes());
  const Json user = {{"role", "user"}, {"content", "abc"}};
  Json large = {{"role", "user"}, {"content", Json::array({{{"type", "input_text"}, {"text", "abc"}}})}};
  large["content"][0]["annotations"] = Json::array({std::string(1'500'000, 'x')});
  const HttpReply stored = fixture.post("/v1/responses", {{"input", Json::array({user, large})}});
  ASSERT_EQ(stored.status, 200) << stored.body;
  const std::string id = Json::parse(stored.body)["id"], path = "/v1/responses/" + id + "/input_items?order=asc";
  const auto status = [&](const std::string& query) { return http_get(fixture.port(), path + query).status; };
  EXPECT_TRUE(ServerFixture::eventually([&] { return status("") == 200; }));
  {
    std::optional<HttpConnection> arriving, another;
    EXPECT_TRUE(ServerFixture::eventually([&] {
      // Once more, since what is asked for meanwhile can take the room of a body on its way, which is refused then.
      for (auto* held : {&arriving, &another}) {
        held->emplace(fixture.port());
        (*held)->send_raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n" +
                          std::string(2'990'000, ' '));
      }
      for (int looks = 0; looks < 100; ++looks) {
        if (status("") == 503) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return false;
    }));
    EXPECT_EQ(status("&limit=1"), 200) << "the small one";
  }
  EXPECT_TRUE(ServerFixture::eventually([&] { return status("") == 200; }));
}

TEST(HostileBodies, a_template_gets_no_more_text_than_the_context_holds) {
  ServerFixture fixture;
  const std::string long_text(4 * kMiB, 'a');
  Json message = {{"role", "assistant"}, {"content", "abc"}, {"reasoning_content", long_text}};
  const Answer reasoning = fixture.ask({{"messages", Json::array({message})}});
  EXPECT_EQ(reasoning.status, 400);
  EXPECT_EQ(reasoning.error["code"], "context_length_exceeded");
  const Answer switches = fixture.ask(chat_body("abc", {{"chat_template_kwargs", {{"note", long_text}}}}));
  EXPECT_EQ(switches.status, 400);
  EXPECT_EQ(switches.error["param"], "chat_template_kwargs");
  EXPECT_EQ(fixture.ask(chat_body("abc", {{"chat_template_kwargs", {{"note", std::string(1000, 'a')}}}})).status, 200);
}

}  // namespace
}  // namespace tailrace::test
