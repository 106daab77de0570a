// Who may ask, and under which name a request goes: keys, their bounds, request ids, pages of other
// origins.
#include <gtest/gtest.h>

#include "http/server_fixture.h"
#include "server/cors.h"
#include "server/request_log.h"

namespace tailrace::test {
namespace {

const std::string kAlice = "Authorization: Bearer a\r\n", kBob = "x-api-key: b\r\n";

FixtureOptions two_keys() {
  FixtureOptions options;
  options.config.http.api_keys = {"a", "b"};
  options.context_length = 1 << 20;
  return options;
}

TEST(Access, each_of_several_keys_opens_and_no_other) {
  ServerFixture fixture(two_keys());
  EXPECT_EQ(http_get(fixture.port(), "/v1/models", kAlice).status, 200);
  EXPECT_EQ(http_get(fixture.port(), "/v1/models", kBob).status, 200);
  EXPECT_EQ(http_get(fixture.port(), "/v1/models", "Authorization: Bearer c\r\n").status, 401);
  EXPECT_EQ(http_get(fixture.port(), "/v1/models").status, 401);
}

TEST(Access, a_key_runs_no_more_than_its_bound) {
  FixtureOptions options = two_keys();
  options.config.http.max_running_per_key = 2;
  ServerFixture fixture(options);
  fixture.engine.step_us = 1000;
  HttpConnection running(fixture.port());
  running.send_request("POST", "/v1/chat/completions",
                       chat_body("loop", {{"stream", true}, {"n", 2}}).dump(), kAlice);
  ASSERT_TRUE(running.read_until("again"));
  const HttpReply refused =
      http_post(fixture.port(), "/v1/chat/completions", chat_body("abc").dump(), kAlice);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_EQ(Json::parse(refused.body)["error"]["type"], "rate_limit_error");
  EXPECT_EQ(http_post(fixture.port(), "/v1/chat/completions", chat_body("abc").dump(), kBob).status,
            200);
  EXPECT_EQ(
      http_post(fixture.port(), "/v1/chat/completions", chat_body("abc", {{"n", 3}}).dump(), kBob)
          .status,
      400);
  running.close();
  EXPECT_TRUE(ServerFixture::eventually([&] {
    return http_post(fixture.port(), "/v1/chat/completions", chat_body("abc").dump(), kAlice)
               .status == 200;
  }));
}

TEST(Access, a_well_formed_request_id_is_kept_and_any_other_replaced) {
  ServerFixture fixture;
  const auto id_of = [&](const std::string& header) {
    return http_get(fixture.port(), "/v1/models", header).headers["x-request-id"];
  };
  EXPECT_EQ(id_of("X-Request-Id: job-7.a:b_c\r\n"), "job-7.a:b_c");
  for (const std::string& bad :
       {std::string(), std::string("X-Request-Id: a b\r\n"), std::string("X-Request-Id: \"x\"\r\n"),
        "X-Request-Id: " + std::string(129, 'a') + "\r\n"}) {
    const std::string id = id_of(bad);
    EXPECT_TRUE(is_request_id(id) && id.size() == 26 && id.rfind("req_", 0) == 0) << id;
  }
  EXPECT_NE(id_of(""), id_of(""));
}

TEST(Access, every_kind_of_answer_has_the_request_id) {
  ServerFixture fixture(two_keys());
  const auto id_of = [&](const std::string& text) {
    HttpConnection connection(fixture.port());
    connection.send_raw(text);
    return connection.read_reply().headers["x-request-id"];
  };
  const std::string head = " HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\n";
  EXPECT_EQ(id_of("GET /health" + head + "\r\n"), "mine");
  EXPECT_EQ(id_of("GET /nothing" + head + kAlice + "\r\n"), "mine");
  EXPECT_EQ(id_of("POST /tokenize" + head + "Content-Length: 9\r\n\r\n"),
            "mine");  // 401, its body unread
  EXPECT_EQ(id_of("POST /tokenize" + head + kAlice + "Content-Length: 99999999999\r\n\r\n"),
            "mine");
  EXPECT_EQ(id_of("no HTTP\r\n\r\n").size(), 26u);
  const std::string body = chat_body("abc", {{"stream", true}}).dump();
  EXPECT_EQ(id_of("POST /v1/chat/completions" + head + kAlice +
                  "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body),
            "mine");
}

TEST(Access, a_request_without_host_or_with_two_is_400) {
  ServerFixture fixture;
  const auto status_of = [&](const std::string& text) {
    HttpConnection connection(fixture.port());
    connection.send_raw(text);
    return connection.read_reply().status;
  };
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost:\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET /health HTTP/1.0\r\n\r\n"), 200);
}

// A body whose end is not seen would be read as the next request.
TEST(Access, transfer_encodings_other_than_chunked_end_the_connection) {
  ServerFixture fixture;
  for (const char* fields : {"Transfer-Encoding: identity", "Transfer-Encoding: gzip", "Transfer-Encoding: xchunked",
                             "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked"}) {
    HttpConnection connection(fixture.port());
    connection.send_raw(std::string("GET /health HTTP/1.1\r\nHost: localhost\r\n") + fields +
                        "\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const auto reply = connection.read_reply();
    EXPECT_GE(reply.status, 400) << fields;
    EXPECT_TRUE(connection.wait_closed()) << fields;
  }
}

TEST(Access, head_says_what_get_would) {
  ServerFixture fixture;
  for (const char* path : {"/health", "/metrics", "/v1/models", "/v1/models/m", "/v1/models/other",
                           "/nothing", "/tokenize"}) {
    HttpConnection connection(fixture.port());
    connection.send_request("HEAD", path);
    ASSERT_TRUE(connection.read_until("\r\n\r\n")) << path;
    const HttpReply get = http_get(fixture.port(), path);
    EXPECT_EQ(connection.raw().rfind("HTTP/1.1 " + std::to_string(get.status), 0), 0u)
        << path << connection.raw();
    EXPECT_EQ(connection.raw().find("\r\n\r\n") + 4, connection.raw().size())
        << path << connection.raw();
  }
}

TEST(Access, no_page_of_another_origin_may_by_default) {
  ServerFixture fixture;
  const HttpReply reply = http_get(fixture.port(), "/v1/models", "Origin: http://page\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0u);
  HttpConnection preflight(fixture.port());
  preflight.send_request("OPTIONS", "/v1/models", "",
                         "Origin: http://page\r\nAccess-Control-Request-Method: GET\r\n");
  EXPECT_EQ(preflight.read_reply().status, 405);
}

TEST(Access, listed_origins_may_and_their_preflights_need_no_key) {
  FixtureOptions options = two_keys();
  options.config.http.cors_origins = {"https://page:8443"};
  ServerFixture fixture(options);
  const auto preflight = [&](const std::string& path, const std::string& origin,
                             const std::string& more = "") {
    HttpConnection connection(fixture.port());
    connection.send_request(
        "OPTIONS", path, "",
        "Origin: " + origin + "\r\nAccess-Control-Request-Method: POST\r\n" + more);
    return connection.read_reply();
  };
  const std::string asked = "Access-Control-Request-Headers: authorization,content-type\r\n";
  HttpReply reply = preflight("/v1/chat/completions", "https://page:8443", asked);
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.headers["access-control-allow-origin"], "https://page:8443");
  EXPECT_EQ(reply.headers["access-control-allow-methods"], "POST");
  EXPECT_EQ(reply.headers["access-control-allow-headers"], "authorization,content-type");
  EXPECT_EQ(reply.headers["vary"], "Origin");
  EXPECT_EQ(preflight("/v1/chat/completions", "https://page").status, 401);
  EXPECT_EQ(preflight("/nothing", "https://page:8443").status, 401);
  reply = preflight("/v1/models", "https://page:8443", "Access-Control-Request-Headers: a\"b\r\n");
  EXPECT_EQ(reply.headers.count("access-control-allow-headers"), 0u);
  reply = http_get(fixture.port(), "/v1/models",
                   "Origin: https://page:8443\r\n");  // a page may read why it was refused
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.headers["access-control-allow-origin"], "https://page:8443");
  EXPECT_NE(reply.headers["access-control-expose-headers"].find("X-Request-Id"), std::string::npos);
  EXPECT_EQ(http_get(fixture.port(), "/health", "Origin: https://other\r\n")
                .headers.count("access-control-allow-origin"),
            0u);
}

// Browsers send such requests of any page without asking, and tell the page's origin.
TEST(Access, without_keys_a_page_of_another_origin_changes_and_computes_nothing) {
  FixtureOptions options;
  options.config.http.cors_origins = {"https://page:8443"};
  ServerFixture fixture(options);
  const auto status_of = [&](const std::string& method, const std::string& path, const std::string& origin) {
    HttpConnection connection(fixture.port());
    connection.send_request(method, path, method == "POST" ? "{}" : "", "Origin: " + origin + "\r\n");
    return connection.read_reply().status;
  };
  for (const char* origin : {"http://evil", "null", "http://localhost:1", "http://localhost.evil", "https://page"}) {
    for (const char* path : {"/flush_cache", "/abort", "/tokenize", "/v1/chat/completions", "/v1/responses", "/v1/messages"}) {
      EXPECT_EQ(status_of("POST", path, origin), 403) << origin << path;
    }
    EXPECT_EQ(status_of("DELETE", "/v1/responses/resp_1", origin), 403);
    EXPECT_EQ(status_of("GET", "/v1/models", origin), 200);
  }
  EXPECT_EQ(fixture.num_flushes.load(), 0);
  for (const char* origin : {"http://localhost", "https://localhost", "https://page:8443", ""}) {
    EXPECT_EQ(status_of("POST", "/flush_cache", origin), 200) << origin;
  }
  HttpConnection unread(fixture.port());  // refused before the body is there
  unread.send_raw("POST /v1/messages HTTP/1.1\r\nHost: localhost:80\r\nOrigin: http://evil\r\nContent-Length: 1000\r\n\r\n");
  HttpReply reply = unread.read_reply();
  EXPECT_EQ(reply.status, 403);
  EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "permission_error");
  reply = http_post(fixture.port(), "/abort", "{}", "Origin: http://evil\r\n");
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["type"], "permission_error");
  EXPECT_EQ(error["code"], "origin_not_allowed");
  EXPECT_NE(error["message"].get<std::string>().find("--cors-allow-origin \"http://evil\""), std::string::npos);
  reply = http_post(fixture.port(), "/abort", "{}", "Origin: null\r\n");
  EXPECT_NE(reply.body.find("--cors-allow-origin null"), std::string::npos) << reply.body;
}

// A trace keeps everybody else from one. An image's address is asked for without an Origin.
TEST(Access, without_keys_no_page_of_another_origin_takes_a_trace) {
  ServerFixture fixture;
  const auto status_of = [&](const std::string& path, const std::string& headers) {
    HttpConnection connection(fixture.port());
    connection.send_request("GET", path, "", headers);
    return connection.read_reply().status;
  };
  const std::string trace = "/debug/trace?seconds=99";  // 400 to whom may ask
  for (const char* headers : {"Origin: http://evil\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n",
                              "Sec-Fetch-Site: same-site\r\n",
                              "Origin: http://evil\r\nSec-Fetch-Site: cross-site\r\n"}) {
    EXPECT_EQ(status_of(trace, headers), 403) << headers;
    EXPECT_EQ(status_of("/debug/steps", headers), 200) << headers;
  }
  for (const char* headers : {"", "Origin: http://localhost\r\n", "Sec-Fetch-Site: none\r\n",
                              "Sec-Fetch-Site: same-origin\r\n"}) {
    EXPECT_EQ(status_of(trace, headers), 400) << headers;
  }
}

// Of files, and of programs that are built on a browser.
TEST(Access, pages_without_a_host_may_be_allowed) {
  FixtureOptions options;
  options.config.http.cors_origins = {"file://", "app://obsidian.md"};
  for (const std::string& origin : options.config.http.cors_origins) EXPECT_TRUE(check_origin(origin).ok());
  EXPECT_TRUE(check_origin("null").ok());
  ServerFixture fixture(options);
  const auto status_of = [&](const std::string& origin) {
    return http_post(fixture.port(), "/flush_cache", "{}", "Origin: " + origin + "\r\n").status;
  };
  EXPECT_EQ(status_of("file://"), 200);
  EXPECT_EQ(status_of("app://obsidian.md"), 200);
  EXPECT_EQ(status_of("null"), 403);
  options.config.http.cors_origins = {"null"};
  ServerFixture open(options);
  EXPECT_EQ(http_post(open.port(), "/flush_cache", "{}", "Origin: null\r\n").status, 200);
  EXPECT_EQ(http_post(open.port(), "/flush_cache", "{}", "Origin: file://\r\n").status, 403);
}

TEST(Access, pages_of_other_origins_that_hold_a_key_may_ask) {
  ServerFixture fixture(two_keys());
  const std::string page = "Origin: http://page\r\nHost: elsewhere\r\n";
  const std::string head = "POST /tokenize HTTP/1.1\r\n" + page + "Content-Length: 14\r\n";
  for (const std::string& key : {std::string(), kAlice}) {
    HttpConnection connection(fixture.port());
    connection.send_raw(head + key + "\r\n" + R"({"prompt":"a"})");
    EXPECT_EQ(connection.read_reply().status, key.empty() ? 401 : 200);
  }
}

// A page whose name its owner has pointed here (DNS rebinding) would be of the server's own origin.
TEST(Access, without_keys_a_loopback_address_answers_to_its_own_names_alone) {
  FixtureOptions options;
  options.config.http.allowed_hosts = {"Box.lan"};
  const auto ask = [](const ServerFixture& fixture, const std::string& host) {
    HttpConnection connection(fixture.port());
    connection.send_raw("GET /v1/requests HTTP/1.1\r\nHost: " + host + "\r\nOrigin: http://" + host + "\r\n\r\n");
    return connection.read_reply();
  };
  ServerFixture fixture(options);
  for (const char* host : {"localhost", "LocalHost:8000", "localhost.:8000", "host.docker.internal:8000", "127.0.0.1:80", "127.1.2.3", "[::1]:8000", "[::1]", "192.168.0.7:1", "box.lan",
                           "BOX.LAN:8000"}) {
    EXPECT_EQ(ask(fixture, host).status, 200) << host;
  }
  for (const char* host : {"evil", "evil:8000", "localhost.evil", "evil.localhost", "127.0.0.1.evil", "box.lan.evil", "[evil]", "1.2.3",
                           "lan"}) {
    const HttpReply refused = ask(fixture, host);
    EXPECT_EQ(refused.status, 403) << host;
    EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "host_not_allowed");
    EXPECT_NE(refused.body.find("--allowed-hosts"), std::string::npos);
  }
  options.config.http.allowed_hosts.clear();
  options.config.http.host = "0.0.0.0";  // its names are not known here
  ServerFixture open(options);
  EXPECT_EQ(ask(open, "evil").status, 200);
}

}  // namespace
}  // namespace tailrace::test
