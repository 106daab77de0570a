// `tailrace chat` without a terminal: a session against a server over the scripted engine.
#include <sstream>

#include "http/server_fixture.h"
#include "server/chat_client.h"

namespace tailrace::test {
namespace {

struct Chat : testing::Test {
  Chat() { address.port = std::to_string(fixture.port()); }
  ServerFixture fixture;
  ServerAddress address;
  ChatConfig config;
  std::ostringstream out;
  std::atomic<bool> stop{false};
  ChatSession session() { return ChatSession(config, address, "m", [this] { return stop.load(); }, out); }
};

TEST_F(Chat, streams_and_keeps_the_history) {
  ChatSession chat = session();
  EXPECT_EQ(chat.handle_line("abc"), ChatSession::Outcome::kAnswered);
  EXPECT_EQ(out.str(), "DEFGGHIJJKK\n");
  EXPECT_EQ(chat.handle_line("emoji"), ChatSession::Outcome::kAnswered);
  ASSERT_EQ(chat.history().size(), 4u);
  EXPECT_EQ(chat.history()[1]["content"], "DEFGGHIJJKK");
  EXPECT_EQ(chat.history()[3]["content"], " ok 🎉!!");
  EXPECT_NE(chat.last_timing().find("6 tokens"), std::string::npos);
}

TEST_F(Chat, commands) {
  config.system_prompt = "be brief";
  ChatSession chat = session();
  chat.handle_line("abc");
  EXPECT_EQ(chat.handle_line("/reset"), ChatSession::Outcome::kCommand);
  ASSERT_EQ(chat.history().size(), 1u);
  EXPECT_EQ(chat.history()[0]["role"], "system");
  EXPECT_EQ(chat.handle_line("  "), ChatSession::Outcome::kCommand);
  EXPECT_EQ(chat.handle_line("/exit"), ChatSession::Outcome::kExit);
}

TEST_F(Chat, a_stopped_answer_keeps_its_part_and_cancels_the_request) {
  fixture.engine.step_us = 1000;
  ChatSession chat = session();
  std::thread stopper([&] {
    ServerFixture::eventually([&] { return fixture.engine.num_tokens > 20; });
    stop = true;
  });
  EXPECT_EQ(chat.handle_line("loop"), ChatSession::Outcome::kStopped);
  stopper.join();
  EXPECT_EQ(chat.history().size(), 2u);
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_cancelled == 1; }));
}

TEST_F(Chat, errors_are_shown_and_the_message_is_taken_back) {
  config.max_tokens = 100000;
  ChatSession chat = session();
  EXPECT_EQ(chat.handle_line("abc"), ChatSession::Outcome::kFailed);
  EXPECT_NE(out.str().find("maximum context length"), std::string::npos);
  EXPECT_TRUE(chat.history().empty());
}

TEST_F(Chat, a_server_that_is_not_there) {
  fixture.server->stop();
  ChatSession chat = session();
  EXPECT_EQ(chat.handle_line("abc"), ChatSession::Outcome::kFailed);
}

TEST(ChatUrl, becomes_an_address) {
  const auto address = [](const char* url) { return address_of(parse_url(url).value(), "8000"); };
  EXPECT_EQ(address("http://[::1]:81/a/")->host, "::1");
  EXPECT_EQ(address("http://[::1]:81/a/")->port, "81");
  EXPECT_EQ(address("http://[::1]:81/a/")->path, "/a");
  EXPECT_EQ(address("http://host")->port, "8000");
  EXPECT_EQ(address("https://host").error().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace tailrace::test
