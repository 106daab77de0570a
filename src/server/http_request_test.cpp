// What is read as a request and what is refused: heads, targets, bodies, and the memory that bodies share.
#include <algorithm>

#include "server/http_listener_fixture.h"

namespace tailrace {
namespace {

using test::HttpConnection;
using test::HttpReply;
using test::ListenerFixture;

TEST(HttpRequests, large_body_is_refused_and_the_client_hears_why) {
  HttpOptions options;
  options.max_body_bytes = 1 << 20;
  ListenerFixture fixture(options);
  HttpConnection connection(fixture.port);
  const std::string body(8 << 20, 'x');
  connection.send_request("POST", "/echo", body);
  EXPECT_EQ(connection.read_reply().status, 413);
}

TEST(HttpRequests, malformed_requests_get_400) {
  ListenerFixture fixture;
  for (const char* text : {"garbage\r\n\r\n", "GET\r\n\r\n", "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: x\r\n\r\n",
                           "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: -1\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"}) {
    HttpConnection connection(fixture.port);
    connection.send_raw(text);
    EXPECT_EQ(connection.read_reply().status, 400) << text;
  }
}

TEST(HttpRequests, an_encoded_body_is_refused_before_it_is_read) {
  ListenerFixture fixture;
  HttpConnection gzip(fixture.port), identity(fixture.port);
  gzip.send_raw("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Encoding: gzip\r\nContent-Length: 100\r\n\r\n");
  EXPECT_EQ(gzip.read_reply().status, 415);
  identity.send_raw("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Encoding: identity\r\nContent-Length: 1\r\n\r\na");
  EXPECT_EQ(identity.read_reply().status, 200);
}

TEST(HttpRequests, short_body_then_end_gets_400) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_raw("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\nabc");
  connection.shutdown_write();
  EXPECT_EQ(connection.read_reply().status, 400);
}

TEST(HttpRequests, slow_headers_and_bodies_time_out) {
  HttpOptions options;
  options.header_timeout_s = 1;
  options.body_timeout_s = 1;
  ListenerFixture fixture(options);
  HttpConnection headers(fixture.port), body(fixture.port);
  headers.send_raw("GET /echo HT");
  body.send_raw("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\nabc");
  EXPECT_EQ(headers.read_reply().status, 408);
  EXPECT_EQ(body.read_reply().status, 408);
}

TEST(HttpRequests, large_headers_are_refused) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/echo", "", "X-Long: " + std::string(20000, 'x') + "\r\n");
  EXPECT_EQ(connection.read_reply().status, 431);
}

TEST(HttpRequests, expect_100_continue_is_answered) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_raw("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(connection.read_until("100 Continue\r\n\r\n"));
  connection.send_raw("abc");
  EXPECT_EQ(connection.read_reply().body, "abc");
}

TEST(HttpRequests, a_refusal_by_the_headers_does_not_read_the_body) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_raw("POST /refused HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(connection.read_reply().status, 401);
  HttpConnection waiting(fixture.port);
  waiting.send_raw("POST /refused HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(waiting.read_reply().interim.empty());  // not asked for the body
}

constexpr int kBody = 256 << 10;
std::string part_of_body(int bytes) {
  return "POST /hold HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(kBody) + "\r\n\r\n" + std::string(bytes, 'x');
}

// Two bodies fit.
HttpOptions two_bodies() {
  HttpOptions options;
  options.max_body_bytes = kBody;
  options.max_total_body_bytes = 2 * kBody;
  return options;
}

TEST(HttpRequests, bodies_share_a_budget_while_they_arrive_and_while_they_are_held) {
  ListenerFixture fixture(two_bodies());
  HttpConnection held(fixture.port), arriving(fixture.port);
  held.send_raw(part_of_body(kBody));
  fixture.wait_held();
  arriving.send_raw(part_of_body(kBody - 1));
  ASSERT_TRUE(fixture.wait_body_bytes(2 * kBody - 1));
  HttpConnection refused(fixture.port);
  refused.send_raw(part_of_body(0));  // refused by its length, before a byte of it
  const HttpReply reply = refused.read_reply();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.count("retry-after"), 1u);
  EXPECT_NE(reply.body.find("--max-total-body-bytes"), std::string::npos);
  HttpConnection chunked(fixture.port);  // says no length: refused by what arrives
  chunked.send_raw("POST /hold HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + std::string(1024, 'x') + "\r\n");
  EXPECT_EQ(chunked.read_reply().status, 503);
  HttpConnection bodyless(fixture.port);
  bodyless.send_request("GET", "/echo");
  EXPECT_EQ(bodyless.read_reply().status, 200);
}

TEST(HttpRequests, promised_bodies_take_nothing) {
  ListenerFixture fixture(two_bodies());
  std::vector<std::unique_ptr<HttpConnection>> promised;
  for (int i = 0; i < 8; ++i) {
    promised.push_back(std::make_unique<HttpConnection>(fixture.port));
    promised.back()->send_raw(part_of_body(0));
  }
  HttpConnection connection(fixture.port);
  connection.send_request("POST", "/echo", std::string(kBody, 'x'));
  EXPECT_EQ(connection.read_reply().status, 200);
}

TEST(HttpRequests, the_budget_comes_back_whatever_ends_a_request) {
  ListenerFixture fixture(two_bodies());
  {
    HttpConnection held(fixture.port), leaving(fixture.port);
    held.send_raw(part_of_body(kBody));
    fixture.wait_held();
    leaving.send_raw(part_of_body(kBody / 2));
    ASSERT_TRUE(fixture.wait_body_bytes(kBody + kBody / 2));
  }
  EXPECT_TRUE(fixture.wait_body_bytes(kBody));  // its client left, but the handler has the body still
  fixture.drop_bodies();
  EXPECT_TRUE(fixture.wait_body_bytes(0));
  HttpConnection large(fixture.port);
  large.send_raw("POST /hold HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n50000\r\n" + std::string(0x50000, 'x'));
  EXPECT_EQ(large.read_reply().status, 413);
  EXPECT_TRUE(fixture.wait_body_bytes(0));
  HttpConnection connection(fixture.port);
  for (int i = 0; i < 5; ++i) {
    connection.send_request("POST", "/echo", std::string(kBody, 'x'));
    EXPECT_EQ(connection.read_reply().status, 200);
  }
}

TEST(HttpRequests, the_budget_comes_back_from_a_body_that_never_ends) {
  HttpOptions options = two_bodies();
  options.body_timeout_s = 1;
  ListenerFixture fixture(options);
  HttpConnection slow(fixture.port);
  slow.send_raw(part_of_body(kBody / 2));
  EXPECT_EQ(slow.read_reply().status, 408);
  EXPECT_TRUE(fixture.wait_body_bytes(0));
}

TEST(HttpRequests, absolute_form_targets) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  for (const char* target :
       {"http://host/echo", "HTTP://host:8000/echo?a=b", "https://user@[::1]/echo", "http://[::1]:80/echo"}) {
    connection.send_raw("GET " + std::string(target) + " HTTP/1.1\r\nHost: host\r\n\r\n");
    EXPECT_EQ(connection.read_reply().status, 200) << target;
  }
  for (const char* target : {"http://host", "http://host?a=/echo", "http://host/hold/echo"}) {
    HttpConnection other(fixture.port);
    other.send_raw("GET " + std::string(target) + " HTTP/1.1\r\nHost: host\r\n\r\n");
  }
  for (const char* target : {"http:///echo", "http://:80/echo", "http://user@/echo", "HTTPS://?a", "http://"}) {
    HttpConnection hostless(fixture.port);
    hostless.send_raw("GET " + std::string(target) + " HTTP/1.1\r\nHost: host\r\n\r\n");
    EXPECT_EQ(hostless.read_reply().status, 400) << target;
  }
  fixture.wait_held(3);
  std::vector<std::string> paths;
  for (const auto& request : fixture.bodies) paths.push_back(request.path);
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(paths, (std::vector<std::string>{"/", "/", "/hold/echo"}));
}

}  // namespace
}  // namespace tailrace
