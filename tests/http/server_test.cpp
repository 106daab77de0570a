// The HTTP surface over a scripted engine: routes, answers in both modes, errors, keys.
#include <gtest/gtest.h>

#include "base/test_fault.h"
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

TEST(Server, streams_a_chat_completion) {
  ServerFixture fixture;
  const HttpReply reply = fixture.post("/v1/chat/completions", chat_body("abc", {{"stream", true}}));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
  const auto events = sse_data(reply.body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(Json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(Json::parse(events[0])["object"], "chat.completion.chunk");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(fixture.ask(chat_body("abc", {{"stream", true}})).text[0], "DEFGGHIJJKK");
}

TEST(Server, same_answer_streamed_or_not) {
  ServerFixture fixture;
  const Answer answer = fixture.ask_both(chat_body("long"));
  EXPECT_EQ(answer.finish[0], "stop");
  EXPECT_EQ(answer.usage["completion_tokens"], 21);
  EXPECT_EQ(answer.usage["prompt_tokens"], 1);
  EXPECT_EQ(answer.usage["total_tokens"], 22);
  EXPECT_TRUE(answer.usage["prompt_tokens_details"].contains("cached_tokens"));
  EXPECT_EQ(answer.timings["predicted_n"], 21);
}

TEST(Server, completions_take_text_ids_and_arrays) {
  ServerFixture fixture;
  const TokenId trigger = *fixture.text.text->tokenizer->token_to_id("<|s:abc|>");
  for (const Json& prompt : {Json("<|s:abc|>"), Json::array({"<|s:abc|>"}), Json::array({trigger}),
                             Json::array({Json::array({trigger})})}) {
    EXPECT_EQ(fixture.ask_both({{"prompt", prompt}}, "/v1/completions").text[0], "DEFGGHIJJKK") << prompt;
  }
  const Answer many = fixture.ask_both({{"prompt", {"<|s:abc|>", "<|s:emoji|>"}}, {"n", 2}}, "/v1/completions");
  EXPECT_EQ(many.text, (std::vector<std::string>{"DEFGGHIJJKK", "DEFGGHIJJKK", " ok 🎉!!", " ok 🎉!!"}));
  EXPECT_EQ(many.usage["prompt_tokens"], 2);
}

TEST(Server, completion_logprobs_have_raw_bytes) {
  ServerFixture fixture;
  const HttpReply reply = fixture.post("/v1/completions", {{"prompt", "<|s:emoji|>"}, {"logprobs", 2}});
  const Json logprobs = Json::parse(reply.body)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), 5u);
  EXPECT_EQ(logprobs["token_bytes"][1], Json::array({240, 159}));
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(logprobs["text_offset"], Json::array({0, 4, 5, 5, 5}));
  const HttpReply bare = fixture.post("/v1/completions", {{"prompt", "<|s:emoji|>"}, {"logprobs", 0}});
  const Json chosen = Json::parse(bare.body)["choices"][0]["logprobs"];
  EXPECT_EQ(chosen["token_logprobs"], logprobs["token_logprobs"]);
  EXPECT_EQ(chosen["top_logprobs"], nullptr);
}

TEST(Server, models_tokenize_detokenize) {
  ServerFixture fixture;
  EXPECT_EQ(Json::parse(http_get(fixture.port(), "/v1/models").body)["data"][0]["id"], "m");
  EXPECT_EQ(http_get(fixture.port(), "/v1/models/m").status, 200);
  EXPECT_EQ(http_get(fixture.port(), "/v1/models/other").status, 404);
  EXPECT_EQ(http_get(fixture.port(), "/v1/models/").status, 404);
  for (const Json& body : {Json{{"model", "other"}, {"prompt", "x"}}, Json{{"model", "other"}, {"messages", Json::array({{{"role", "user"}, {"content", "x"}}})}}}) {
    EXPECT_EQ(fixture.post("/tokenize", body).status, 404);
  }
  EXPECT_EQ(fixture.post("/detokenize", {{"model", "other"}, {"tokens", {1}}}).status, 404);
  const Json tokens = Json::parse(fixture.post("/tokenize", {{"prompt", "hé"}}).body);
  EXPECT_EQ(tokens["tokens"], Json::array({'h', 0xC3, 0xA9}));
  EXPECT_EQ(tokens["count"], 3);
  EXPECT_EQ(fixture.post("/tokenize", {{"prompt", "a"}, {"messages", nullptr}}).status, 200);
  EXPECT_EQ(Json::parse(fixture.post("/detokenize", {{"tokens", tokens["tokens"]}}).body)["prompt"], "hé");
  EXPECT_EQ(fixture.post("/detokenize", {{"tokens", {1 << 30}}}).status, 400);
  EXPECT_EQ(Json::parse(fixture.post("/tokenize", chat_body("abc")).body)["count"], 1);
}

TEST(Server, models_in_anthropics_form_for_its_clients) {
  ServerFixture fixture;
  const auto get = [&](const std::string& path, const char* headers = "anthropic-version: 2023-06-01\r\n") {
    return Json::parse(http_get(fixture.port(), path, headers).body);
  };
  const Json list = get("/v1/models?limit=20"), model = get("/v1/models/m");
  EXPECT_EQ(list["data"], Json::array({model}));
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(list["first_id"], "m");
  EXPECT_EQ(list["last_id"], "m");
  EXPECT_EQ(model["type"], "model");
  EXPECT_EQ(model["id"], "m");
  EXPECT_EQ(model["max_input_tokens"], 511);
  EXPECT_FALSE(model.contains("object"));
  EXPECT_EQ(get("/v1/models?limit=1000")["data"].size(), 1u);
  for (const char* limit : {"0", "1001", "-1", "two", ""}) {
    EXPECT_EQ(get(std::string("/v1/models?limit=") + limit)["error"]["type"], "invalid_request_error") << limit;
  }
  const Json beyond = get("/v1/models?after_id=m");
  EXPECT_EQ(beyond["data"], Json::array());
  EXPECT_EQ(beyond["first_id"], nullptr);
  EXPECT_EQ(get("/v1/models?before_id=x")["error"]["type"], "invalid_request_error");
  EXPECT_EQ(get("/v1/models/other")["error"]["type"], "not_found_error");
  EXPECT_EQ(get("/v1/models/other", "")["error"]["code"], "model_not_found");
  EXPECT_EQ(get("/v1/models?after_id=m", "")["data"], Json::array());
}

TEST(Server, flush_cache_reaches_the_engine_and_asks_for_the_key) {
  FixtureOptions options;
  options.config.http.api_keys = {"secret"};
  ServerFixture fixture(options);
  EXPECT_EQ(fixture.post("/flush_cache", Json::object()).status, 401);
  EXPECT_EQ(fixture.num_flushes.load(), 0);
  const std::string key = "Authorization: Bearer secret\r\n";
  const HttpReply flushed = http_post(fixture.port(), "/flush_cache", "", key);
  EXPECT_EQ(flushed.status, 200);
  EXPECT_EQ(Json::parse(flushed.body), (Json{{"status", "ok"}, {"flushed_blocks", 7}, {"running", 2}}));
  EXPECT_EQ(fixture.num_flushes.load(), 1);
  fixture.flush_answer = fail(StatusCode::kResourceExhausted, "still busy");
  const HttpReply late = http_post(fixture.port(), "/flush_cache", "", key);
  EXPECT_EQ(late.status, 503);
  EXPECT_EQ(late.headers.count("retry-after"), 1u);
  EXPECT_EQ(Json::parse(late.body)["error"]["message"], "still busy");
  EXPECT_EQ(http_get(fixture.port(), "/flush_cache", key).status, 405);
}

TEST(Server, unknown_paths_and_methods) {
  ServerFixture fixture;
  EXPECT_EQ(http_get(fixture.port(), "/v2/nothing").status, 404);
  const HttpReply reply = http_get(fixture.port(), "/v1/chat/completions");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers.at("allow"), "POST");
  EXPECT_EQ(fixture.post("/health", Json::object()).status, 405);
}

TEST(Server, a_query_parameter_that_a_path_does_not_take_is_refused_by_name) {
  ServerFixture fixture;
  const std::string chat = chat_body("abc").dump();
  for (const char* path :
       {"/v1/chat/completions?stream=true", "/v1/messages?beta=true&stream=true", "/v1/completions?stream=",
        "/v1/responses?stream", "/tokenize?str%65am=1", "/v1/messages/count_tokens?stream=1"}) {
    const HttpReply reply = http_post(fixture.port(), path, chat);
    EXPECT_EQ(reply.status, 400) << path;
    const Json body = Json::parse(reply.body);
    EXPECT_NE(body["error"]["message"].get<std::string>().find("'stream'"), std::string::npos) << reply.body;
    const bool anthropic = std::string_view(path).starts_with("/v1/messages");
    EXPECT_EQ(body.value("type", ""), anthropic ? "error" : "") << reply.body;
    EXPECT_EQ(body["error"].value("param", "stream"), "stream");
  }
  for (const char* path : {"/v1/requests?limit=3", "/server_info?x", "/v1/models/m?limit=1"}) {
    EXPECT_EQ(http_get(fixture.port(), path).status, 400) << path;
  }
  EXPECT_EQ(http_post(fixture.port(), "/v1/chat/completions?", chat).status, 200);
  // What load balancers, scrapers and browsers add, and what model lists of other servers take.
  for (const char* path :
       {"/health?x=1", "/ready?x=1", "/metrics?format=text", "/?from=bookmark", "/openapi.json?v=2",
        "/v1/models?limit=1000", "/v1/models?client_version=0.1.0"}) {
    EXPECT_EQ(http_get(fixture.port(), path).status, 200) << path;
  }
}

TEST(Server, wrong_model_is_404) {
  ServerFixture fixture;
  const Answer answer = fixture.ask(chat_body("abc", {{"model", "gpt-9"}}));
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.error["code"], "model_not_found");
  EXPECT_EQ(answer.error["param"], "model");
}

TEST(Server, api_key_guards_all_but_health_and_metrics) {
  FixtureOptions options;
  options.config.http.api_keys = {"secret"};
  ServerFixture fixture(options);
  const std::string good = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(http_get(fixture.port(), "/v1/models").status, 401);
  EXPECT_EQ(http_get(fixture.port(), "/v1/models", "Authorization: Bearer secreT\r\n").status, 401);
  EXPECT_EQ(http_get(fixture.port(), "/v1/models", "Authorization: Bearer secretsecret\r\n").status, 401);
  EXPECT_EQ(http_get(fixture.port(), "/v1/models", "Authorization: Bearer \r\n").status, 401);
  EXPECT_EQ(http_get(fixture.port(), "/v1/models", good).status, 200);
  EXPECT_EQ(http_post(fixture.port(), "/v1/chat/completions", chat_body("abc").dump()).status, 401);
  EXPECT_EQ(http_post(fixture.port(), "/v1/chat/completions", chat_body("abc").dump(), good).status, 200);
  EXPECT_EQ(http_get(fixture.port(), "/health").status, 200);
  EXPECT_EQ(http_get(fixture.port(), "/metrics").status, 200);
}

TEST(Server, a_wrong_key_or_path_is_told_before_the_body_is_sent) {
  FixtureOptions options;
  options.config.http.api_keys = {"secret"};
  ServerFixture fixture(options);
  const auto status_of_head = [&](const std::string& start, const std::string& more = "") {
    HttpConnection connection(fixture.port());
    connection.send_raw(start + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n" + more + "\r\n");
    return connection.read_reply().status;
  };
  const std::string key = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(status_of_head("POST /v1/chat/completions"), 401);
  EXPECT_EQ(status_of_head("POST /nothing", key), 404);
  EXPECT_EQ(status_of_head("PUT /v1/completions", key), 405);
  EXPECT_EQ(fixture.metric("tailrace_http_answers_total", "401"), 1);
}

TEST(Server, health_and_metrics_answer_beyond_max_connections) {
  FixtureOptions options;
  options.config.http.max_connections = 1;
  options.context_length = 1 << 20;
  ServerFixture fixture(options);
  fixture.engine.step_us = 1000;
  HttpConnection busy(fixture.port());
  busy.send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", true}}).dump());
  ASSERT_TRUE(busy.read_until("again"));
  EXPECT_EQ(http_get(fixture.port(), "/health").status, 200);
  EXPECT_EQ(http_get(fixture.port(), "/metrics").status, 200);
  const HttpReply refused = http_get(fixture.port(), "/v1/models");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_EQ(fixture.ask(chat_body("abc")).status, 503);
}

TEST(Server, bodies_beyond_the_budget_are_503_until_the_others_are_done_with) {
  FixtureOptions options;
  options.config.http.max_body_bytes = options.config.http.max_total_body_bytes = 1 << 20;
  ServerFixture fixture(options);
  const std::string body = chat_body("abc").dump() + std::string(700 << 10, ' ');
  HttpConnection arriving(fixture.port());
  arriving.send_raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                    body.substr(0, body.size() - 1));
  // A body that is only announced takes nothing: sent at once it could be ahead of the one arriving, which would be refused.
  ASSERT_TRUE(ServerFixture::eventually([&] {
    HttpConnection announced(fixture.port());
    announced.send_raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: " +
                       std::to_string(body.size()) + "\r\n\r\n");
    return announced.read_until("\r\n\r\n") && announced.raw().find(" 503 ") != std::string::npos;
  }));
  EXPECT_EQ(http_post(fixture.port(), "/v1/chat/completions", body).status, 503);
  arriving.send_raw(body.substr(body.size() - 1));
  EXPECT_EQ(arriving.read_reply().status, 200);
  EXPECT_TRUE(ServerFixture::eventually(  // a worker lets go of the last body a moment after its answer
      [&] { return http_post(fixture.port(), "/v1/chat/completions", body).status == 200; }));
}

TEST(Server, full_queue_is_503_with_retry_after) {
  FixtureOptions options;
  options.config.limits.max_queued_requests = 2;
  ServerFixture fixture(options);
  fixture.engine.admitting = false;
  HttpConnection first(fixture.port()), second(fixture.port());
  first.send_request("POST", "/v1/chat/completions", chat_body("abc").dump());
  second.send_request("POST", "/v1/chat/completions", chat_body("abc").dump());
  ASSERT_TRUE(ServerFixture::eventually([&] { return fixture.queue.depth() == 2; }));
  const HttpReply refused = fixture.post("/v1/chat/completions", chat_body("abc"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  fixture.engine.admitting = true;
  EXPECT_EQ(first.read_reply().status, 200);
  EXPECT_EQ(second.read_reply().status, 200);
}

TEST(Server, engine_failure_reaches_every_open_request) {
  ServerFixture fixture;
  fixture.engine.step_us = 1000;
  HttpConnection streaming(fixture.port());
  streaming.send_request("POST", "/v1/chat/completions", chat_body("loop", {{"stream", true}}).dump());
  ASSERT_TRUE(streaming.read_until("again"));
  fixture.engine.fail_all = true;
  const HttpReply reply = streaming.read_reply();
  const auto events = sse_data(reply.body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["type"], "server_error");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(fixture.ask(chat_body("loop")).status, 500);
}

TEST(Server, request_timeout_ends_the_request) {
  FixtureOptions options;
  options.config.limits.request_timeout_s = 0.2;
  ServerFixture fixture(options);
  fixture.engine.admitting = false;
  const Answer answer = fixture.ask(chat_body("abc"));
  EXPECT_EQ(answer.status, 504);
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_cancelled == 1; }));
}

TEST(Server, metrics_count_requests) {
  ServerFixture fixture;
  fixture.ask(chat_body("abc"));
  fixture.ask(chat_body("abc", {{"max_tokens", 2}}));
  EXPECT_EQ(fixture.metric("tailrace_request_success_total", "finished_reason=\"stop\""), 1);
  EXPECT_EQ(fixture.metric("tailrace_request_success_total", "finished_reason=\"length\""), 1);
  EXPECT_EQ(fixture.metric("tailrace_time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(fixture.metric("tailrace_generation_tokens_total"), 8);
  EXPECT_EQ(fixture.metric("tailrace_host_block_total"), 0);
}

TEST(Server, text_that_no_context_holds_is_refused_before_it_is_tokenized) {
  ServerFixture fixture;
  const auto answer = fixture.post("/tokenize", {{"prompt", std::string(4 << 20, 'a')}});
  EXPECT_EQ(answer.status, 413);
  EXPECT_NE(answer.body.find("context_length_exceeded"), std::string::npos) << answer.body;
}

TEST(Server, head_is_answered_without_a_body) {
  ServerFixture fixture;
  HttpConnection connection(fixture.port());
  ASSERT_TRUE(connection.send_raw("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  ASSERT_TRUE(connection.read_until("HTTP/1.1 404"));
  const std::string& raw = connection.raw();
  EXPECT_EQ(raw.rfind("HTTP/1.1 200", 0), 0u) << raw;
  const size_t end_of_head = raw.find("\r\n\r\n");
  EXPECT_EQ(raw.compare(end_of_head + 4, 12, "HTTP/1.1 404"), 0) << raw;  // the next answer follows at once
}

// Hazard 18: /health must not wait for somebody's tokenizing. The guard is the worker pool.
double health_wait_share(bool fault) {
  FixtureOptions options;
  options.config.http.io_threads = 1;
  options.context_length = 1 << 20;  // else the text is refused before it is tokenized
  ServerFixture fixture(options);
  std::string text;
  for (int i = 0; i < 30000; ++i) text += "word" + std::to_string(i % 1000) + " ";
  std::unique_ptr<ScopedTestFault> scope;
  if (fault) scope = std::make_unique<ScopedTestFault>(Fault::kInlineTokenize);
  std::atomic<bool> answered{false};
  double total_ms = 0;
  const auto ms_since = [](auto start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  std::thread client([&] {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(fixture.post("/tokenize", {{"prompt", text}}).status, 200);
    total_ms = ms_since(start);
    answered = true;
  });
  double longest_ms = 0;
  while (!answered) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(http_get(fixture.port(), "/health").status, 200);
    longest_ms = std::max(longest_ms, ms_since(start));
  }
  client.join();
  return longest_ms / total_ms;
}

TEST(Hazard18, health_answers_while_a_long_prompt_is_tokenized) {
  EXPECT_LT(health_wait_share(false), 0.5);
  EXPECT_GT(health_wait_share(true), 0.5);
}

}  // namespace
}  // namespace tailrace::test
