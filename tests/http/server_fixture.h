// A server in this process over a FakeEngine, on a free port, and small helpers to ask it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "http/fake_engine.h"
#include "server/http_server.h"
#include "server/json.h"
#include "support/http_client.h"

namespace tailrace::test {

struct FixtureOptions {
  ServeConfig config;          // port and model path are set by the fixture
  int32_t context_length = 512;
  int slots = 8;
  bool model_ready = true;     // false: the engine is not started, the model not set (load() does both)
  Scripts scripts = basic_scripts();
  std::vector<PageFile> page;  // none: a server without one
};

struct AnswerCall {
  std::string id, name, arguments;
  int num_pieces = 0;            // streamed: deltas that brought arguments
};

// The text of an answer, streamed or not, and what else the cases look at.
struct Answer {
  int status = 0;
  std::vector<std::string> text;                // by choice: content
  std::vector<std::string> reasoning;           // by choice
  std::vector<std::vector<AnswerCall>> calls;   // by choice
  std::vector<std::vector<std::string>> deltas; // streamed: non-empty text deltas by choice
  std::vector<std::string> finish;              // by choice; "" when absent
  std::vector<Json> logprobs;                   // by choice: chat logprobs.content, concatenated
  Json usage, timings, error;
  bool done = false;                            // streamed: [DONE] came last
  std::string fault;                            // a broken rule of the protocol
};

class ServerFixture {
 public:
  explicit ServerFixture(FixtureOptions options = {});
  ~ServerFixture();

  void load();
  uint16_t port() const { return port_; }
  HttpReply post(const std::string& path, const Json& body) const { return http_post(port_, path, body.dump()); }

  // POST to the chat or completions path; stream by body["stream"].
  Answer ask(const Json& body, const std::string& path = "/v1/chat/completions") const;
  // Asks with and without streaming, and fails the test where the two differ.
  Answer ask_both(Json body, const std::string& path = "/v1/chat/completions") const;
  // Waits (20 s at most) until `condition` holds.
  template <typename Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 20000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  // Sum of the samples of `name` whose labels hold `label`, e.g. finished_reason="stop".
  double metric(const std::string& name, const std::string& label = "") const;

  ScriptedText text;
  RequestQueue queue;
  EngineStatus status;
  StepLog steps{1500};         // the test writes it: the engine here has no device
  FakeEngine engine;
  std::atomic<int> num_flushes{0};
  Expected<FlushedCache> flush_answer = FlushedCache{.blocks = 7, .running = 2};
  std::unique_ptr<HttpServer> server;

 private:
  const FixtureOptions options_;
  uint16_t port_ = 0;
};

// "name{arguments} ..." of one choice's calls.
std::string shown(const std::vector<AnswerCall>& calls);

// {"messages": [{"role": "user", "content": content}], "temperature": 0, ...more}
Json chat_body(const std::string& content, const Json& more = Json::object());

}  // namespace tailrace::test
