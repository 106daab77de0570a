// What is stored of answers of /v1/responses, and requests that go on from them; streams that end early.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

FixtureOptions agent() {
  FixtureOptions options;
  options.config.model.tool_call_parser = ToolFormat::kQwen;
  options.scripts = {{"call", {"<tool_call>", "{\"name\": \"run\", \"arguments\": {}}", "</tool_call>"}},
                     {"done", {"It is ", "done."}},
                     {"loop", {"again "}}};
  return options;
}

Json body(const std::string& input, Json more = Json::object()) {
  more["input"] = input;
  more["temperature"] = 0;
  more["tools"] = Json::parse(R"([{"type":"function","name":"run","parameters":{"type":"object"}}])");
  return more;
}

Json post(const ServerFixture& fixture, const Json& request, int status = 200) {
  const HttpReply reply = fixture.post("/v1/responses", request);
  EXPECT_EQ(reply.status, status) << reply.body;
  return Json::parse(reply.body);
}

HttpReply erase(const ServerFixture& fixture, const std::string& path) {
  HttpConnection connection(fixture.port());
  connection.send_request("DELETE", path);
  return connection.read_reply();
}

TEST(ResponsesStore, a_request_goes_on_from_a_stored_answer) {
  ServerFixture fixture(agent());
  const Json first = post(fixture, body("call"));
  const std::string call_id = first["output"][0]["call_id"];
  Json next = body("", {{"previous_response_id", first["id"]}});
  next["input"] = Json::array({{{"type", "function_call_output"}, {"call_id", call_id}, {"output", "done"}}});
  const Json second = post(fixture, next);
  EXPECT_EQ(second["output"][0]["content"][0]["text"], "It is done.");
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  // Alone the output answers no call.
  next.erase("previous_response_id");
  EXPECT_EQ(post(fixture, next, 400)["error"]["param"], "input[0].call_id");
  const std::string id = second["id"];
  const Json listed = Json::parse(http_get(fixture.port(), "/v1/responses/" + id + "/input_items?order=asc").body);
  ASSERT_EQ(listed["data"].size(), 3u);
  EXPECT_EQ(listed["data"][0]["content"][0], (Json{{"type", "input_text"}, {"text", "call"}}));
  EXPECT_EQ(listed["data"][1], first["output"][0]);
  EXPECT_EQ(listed["data"][2]["output"], "done");
  EXPECT_EQ(listed["has_more"], false);
}

TEST(ResponsesStore, input_tokens_are_counted_as_they_are_prompted) {
  ServerFixture fixture(agent());
  const Json first = post(fixture, body("call"));
  const auto count = [&](Json request, int status = 200) {
    const HttpReply reply = fixture.post("/v1/responses/input_tokens", request);
    EXPECT_EQ(reply.status, status) << reply.body;
    return Json::parse(reply.body);
  };
  Json next = body("done", {{"previous_response_id", first["id"]}, {"instructions", "Be brief."}});
  const Json counting = [&] {
    Json out = next;
    out.erase("temperature");
    return out;
  }();
  const Json prompted = post(fixture, next)["usage"]["input_tokens"];
  EXPECT_EQ(count(counting), (Json{{"object", "response.input_tokens"}, {"input_tokens", prompted}}));
  EXPECT_EQ(count({{"input", "hello"}})["input_tokens"], 5);
  EXPECT_EQ(count(next, 400)["error"]["param"], "temperature");
  EXPECT_EQ(count({{"input", "x"}, {"previous_response_id", "resp_x"}}, 404)["error"]["param"], "previous_response_id");
  EXPECT_EQ(count({{"input", "x"}, {"model", "other"}}, 404)["error"]["code"], "model_not_found");
  EXPECT_EQ(count({{"instructions", "x"}}, 400)["error"]["param"], "input");
  EXPECT_EQ(http_get(fixture.port(), "/v1/responses/input_tokens").status, 404) << "an answer of that id";
}

TEST(ResponsesStore, a_request_that_goes_on_from_an_answer_needs_no_input_of_its_own) {
  ServerFixture fixture(agent());
  const Json first = post(fixture, body("done"));
  for (const Json& nothing : {Json(), Json(""), Json::array()}) {
    const Json next = post(fixture, {{"previous_response_id", first["id"]}, {"input", nothing}});
    EXPECT_EQ(next["status"], "completed") << next;
    const std::string path = "/v1/responses/" + next["id"].get<std::string>() + "/input_items";
    const Json items = Json::parse(http_get(fixture.port(), path).body)["data"];
    EXPECT_EQ(items.size(), 1 + first["output"].size());
  }
}

TEST(ResponsesStore, streamed_answers_are_stored_too) {
  ServerFixture fixture(agent());
  const auto events = sse_data(fixture.post("/v1/responses", body("done", {{"stream", true}})).body);
  const Json last = Json::parse(events.back())["response"];
  EXPECT_EQ(last["store"], true);
  EXPECT_EQ(Json::parse(http_get(fixture.port(), "/v1/responses/" + last["id"].get<std::string>()).body), last);
}

TEST(ResponsesStore, read_and_deleted) {
  ServerFixture fixture(agent());
  const Json response = post(fixture, body("done"));
  const std::string path = "/v1/responses/" + response["id"].get<std::string>();
  EXPECT_EQ(Json::parse(http_get(fixture.port(), path).body), response);
  EXPECT_EQ(http_get(fixture.port(), path + "?stream=true").status, 400);
  EXPECT_EQ(Json::parse(erase(fixture, path).body),
            (Json{{"id", response["id"]}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(http_get(fixture.port(), path).status, 404);
  EXPECT_EQ(erase(fixture, path).status, 404);
  EXPECT_EQ(http_get(fixture.port(), path + "/input_items").status, 404);
  EXPECT_EQ(erase(fixture, path + "/input_items").status, 405);
  const Json error = post(fixture, body("done", {{"previous_response_id", response["id"]}}), 404)["error"];
  EXPECT_EQ(error["param"], "previous_response_id");
  EXPECT_NE(error["message"].get<std::string>().find(response["id"]), std::string::npos);
}

TEST(ResponsesStore, include_is_checked_where_answers_are_read) {
  ServerFixture fixture(agent());
  const Json response = post(fixture, body("done"));
  const std::string path = "/v1/responses/" + response["id"].get<std::string>();
  for (const std::string& of : {path, path + "/input_items"}) {
    const std::string whole = http_get(fixture.port(), of).body;
    for (const char* query : {"?include[]=message.output_text.logprobs", "?include=reasoning.encrypted_content",
                              "?include%5B%5D=file_search_call.results&include%5B%5D=reasoning.encrypted_content"}) {
      const HttpReply reply = http_get(fixture.port(), of + query);
      EXPECT_EQ(reply.status, 200) << query;
      EXPECT_EQ(reply.body, whole);
    }
    const HttpReply wrong =
        http_get(fixture.port(), of + "?include[]=reasoning.encrypted_content&include[]=everything");
    EXPECT_EQ(wrong.status, 400);
    EXPECT_EQ(Json::parse(wrong.body)["error"]["param"], "include[]");
    EXPECT_NE(wrong.body.find("everything"), std::string::npos);
    EXPECT_EQ(http_get(fixture.port(), of + "?include=reasoning.encrypted_content&include=x").status, 400);
  }
}

TEST(ResponsesStore, items_are_listed_in_pages) {
  ServerFixture fixture(agent());
  Json request = body("");
  request["input"] = Json::array();
  for (int i = 0; i < 5; ++i)
    request["input"].push_back({{"role", "user"}, {"id", "m" + std::to_string(i)}, {"content", "done"}});
  const std::string path = "/v1/responses/" + post(fixture, request)["id"].get<std::string>() + "/input_items";
  const auto page = [&](const std::string& query) {
    const Json list = Json::parse(http_get(fixture.port(), path + query).body);
    std::string ids;
    for (const Json& item : list["data"]) ids += item["id"].get<std::string>() + " ";
    return ids + (list["has_more"] == true ? "+" : ".");
  };
  EXPECT_EQ(page(""), "m4 m3 m2 m1 m0 .");
  EXPECT_EQ(page("?limit=2&order=asc"), "m0 m1 +");
  EXPECT_EQ(page("?limit=2&order=asc&after=m1"), "m2 m3 +");
  EXPECT_EQ(page("?order=asc&after=m3&limit=2"), "m4 .");
  EXPECT_EQ(page("?order=asc&after=m%33&limit=%32"), "m4 .");
  for (const char* query : {"?limit=0", "?limit=x", "?limit=", "?order=up", "?after=m9", "?after=", "?limit=1&limit=1"}) {
    EXPECT_EQ(http_get(fixture.port(), path + query).status, 400) << query;
  }
}

// Pages go by ids: every item has one, and no other has the same.
TEST(ResponsesStore, all_items_are_reached_page_by_page) {
  ServerFixture fixture(agent());
  const Json user = {{"role", "user"}, {"content", "done"}};
  Json request = body("");
  request["input"] = Json::array({user, user, user});
  request["input"][1]["id"] = "";
  request["input"][2]["id"] = "a&b=c %+/\u00e9";
  const Json first = post(fixture, request);
  request = body("done", {{"previous_response_id", first["id"]}});
  const std::string id_of_both = post(fixture, request)["id"];
  const std::string path = "/v1/responses/" + id_of_both + "/input_items?order=asc&limit=1";
  std::set<std::string> ids;
  std::string after;
  for (bool more = true; more;) {
    const HttpReply reply = http_get(fixture.port(), path + after);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json list = Json::parse(reply.body);
    const std::string id = list["last_id"];
    ASSERT_TRUE(ids.insert(id).second) << id;
    after = "&after=";
    char escaped[4];
    for (const char c : id) {
      std::snprintf(escaped, sizeof escaped, "%%%02x", static_cast<unsigned char>(c));
      after += escaped;
    }
    more = list["has_more"];
  }
  EXPECT_EQ(ids.size(), 5u);  // three, the answer, and one more
}

TEST(ResponsesStore, an_id_is_a_text_and_of_one_item) {
  ServerFixture fixture(agent());
  const auto error = [&](Json input, Json more = Json::object()) {
    Json request = body("", std::move(more));
    request["input"] = std::move(input);
    return post(fixture, request, 400)["error"]["param"];
  };
  const Json user = {{"role", "user"}, {"content", "done"}};
  Json number = user, named = user;
  number["id"] = 5;
  named["id"] = "m";
  EXPECT_EQ(error(Json::array({user, number})), "input[1].id");
  EXPECT_EQ(error(Json::array({named, user, named})), "input[2].id");
  const Json first = post(fixture, body("done"));
  // What a stored answer brings along is not to be sent again.
  EXPECT_EQ(error(Json::array({first["output"][0]}), {{"previous_response_id", first["id"]}}), "input[0].id");
  EXPECT_EQ(post(fixture, [&] {
              Json alone = body("");
              alone["input"] = Json::array({user, first["output"][0], user});
              return alone;
            }())["status"],
            "completed");
}

TEST(ResponsesStore, cancelling_is_refused_with_the_reason) {
  ServerFixture fixture(agent());
  const std::string id = post(fixture, body("done"))["id"];
  const HttpReply reply = fixture.post("/v1/responses/" + id + "/cancel", Json::object());
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("background"), std::string::npos) << reply.body;
  for (const std::string& path : {"/v1/responses/" + id + "/cancels", "/v1/responses/" + id + "/",
                                  std::string("/v1/responses/"), "/v1/responses/" + id + "/input_items/x"}) {
    EXPECT_EQ(http_get(fixture.port(), path).status, 404) << path;
    EXPECT_EQ(fixture.post(path, Json::object()).status, 404) << path;
  }
}

TEST(ResponsesStore, what_is_not_to_be_stored_is_not) {
  ServerFixture fixture(agent());
  const Json response = post(fixture, body("done", {{"store", false}}));
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(http_get(fixture.port(), "/v1/responses/" + response["id"].get<std::string>()).status, 404);
  FixtureOptions options = agent();
  options.config.limits.max_stored_responses = 0;
  ServerFixture none(options);
  EXPECT_EQ(post(none, body("done"))["store"], false);
  EXPECT_EQ(post(none, body("done", {{"store", true}}), 400)["error"]["param"], "store");
  options = agent();
  options.config.limits.max_stored_response_bytes = 1024;
  ServerFixture small(options);
  EXPECT_EQ(post(small, body("done", {{"instructions", std::string(2000, ' ')}}))["store"], false);
}

TEST(ResponsesStore, another_key_finds_nothing) {
  FixtureOptions options = agent();
  options.config.http.api_keys = {"mine", "yours"};
  ServerFixture fixture(options);
  const auto as = [](const char* key) { return std::string("Authorization: Bearer ") + key + "\r\n"; };
  const Json response = Json::parse(http_post(fixture.port(), "/v1/responses", body("done").dump(), as("mine")).body);
  const std::string path = "/v1/responses/" + response["id"].get<std::string>();
  EXPECT_EQ(http_get(fixture.port(), path).status, 401);
  EXPECT_EQ(http_get(fixture.port(), path, as("yours")).status, 404);
  EXPECT_EQ(http_get(fixture.port(), path, as("mine")).status, 200);
  const Json next = body("done", {{"previous_response_id", response["id"]}});
  EXPECT_EQ(http_post(fixture.port(), "/v1/responses", next.dump(), as("yours")).status, 404);
  EXPECT_EQ(http_post(fixture.port(), "/v1/responses", next.dump(), as("mine")).status, 200);
}

TEST(ResponsesStore, an_engine_that_fails_ends_a_stream_with_response_failed) {
  ServerFixture fixture(agent());
  HttpConnection client(fixture.port());
  fixture.engine.step_us = 1000;
  client.send_request("POST", "/v1/responses", body("loop", {{"stream", true}}).dump());
  ASSERT_TRUE(client.read_until("response.output_text.delta"));
  fixture.engine.fail_all = true;
  const auto events = sse_data(client.read_reply().body);
  const Json last = Json::parse(events.back());
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["status"], "failed");
  EXPECT_EQ(last["response"]["error"]["code"], "server_error");
  EXPECT_EQ(post(fixture, body("done"), 500)["error"]["type"], "server_error");
}

TEST(ResponsesStore, a_client_that_leaves_ends_its_request) {
  ServerFixture fixture(agent());
  HttpConnection client(fixture.port());
  fixture.engine.step_us = 1000;
  client.send_request("POST", "/v1/responses", body("loop", {{"stream", true}}).dump());
  ASSERT_TRUE(client.read_until("response.output_text.delta"));
  client.close();
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_open() == 0; }));
  EXPECT_EQ(fixture.metric("tailrace_request_success_total", "finished_reason=\"abort\""), 1);
}

TEST(ResponsesStore, what_is_echoed_counts_as_the_body_does_until_the_answer_ends) {
  FixtureOptions options = agent();
  options.context_length = 1 << 20;
  ServerFixture fixture(options);
  fixture.engine.step_us = 1000;
  HttpConnection client(fixture.port());
  const Json more = {{"stream", true}, {"instructions", std::string(500'000, 'x')}};
  client.send_request("POST", "/v1/responses", body("loop", more).dump());
  ASSERT_TRUE(client.read_until("response.output_text.delta"));
  EXPECT_GE(fixture.metric("tailrace_http_body_bytes"), 500'000);
  client.close();
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.metric("tailrace_http_body_bytes") == 0; }));
}

// The first events hold what the request said, twice: together more than a stream may have unsent.
TEST(ResponsesStore, a_long_request_is_echoed_also_to_a_client_that_reads_late) {
  FixtureOptions options = agent();
  options.context_length = 1 << 20;
  ServerFixture fixture(options);
  const std::string text(900'000, 'x');
  HttpConnection client(fixture.port());
  const Json more = {{"stream", true}, {"instructions", text}, {"max_output_tokens", 400}};
  client.send_request("POST", "/v1/responses", body("loop", more).dump());
  ASSERT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_started == 1 && fixture.engine.num_open() == 0; }));
  const HttpReply reply = client.read_reply();
  EXPECT_TRUE(reply.complete);
  const auto events = sse_data(reply.body);
  ASSERT_FALSE(events.empty());
  const Json last = Json::parse(events.back());
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["usage"]["output_tokens"], 400);
  EXPECT_EQ(last["response"]["instructions"], text);
}

}  // namespace
}  // namespace tailrace::test
