#include "server/http_listener.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "support/http_client.h"

namespace tailrace {
namespace {

using test::HttpConnection;
using test::HttpReply;

// A listener whose handler hands each exchange to the test.
struct Fixture {
  explicit Fixture(HttpOptions options = {}) {
    options.port = 0;
    const auto handler = [this](std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
      if (request.path == "/echo") {
        HttpResponse response;
        response.body = request.body;
        return exchange->respond(std::move(response));
      }
      exchange->on_disconnect([this] { left.fetch_add(1); });
      std::lock_guard lock(mutex);
      held.push_back(std::move(exchange));
      bodies.push_back(std::move(request));
    };
    const auto refuse = [](const HttpRequest& head) -> std::optional<HttpResponse> {
      if (head.path != "/refused") return std::nullopt;
      return HttpResponse{.status = 401};
    };
    listener = std::make_unique<HttpListener>(
        options, handler,
        HttpHeadRules{.refuse = refuse,
                                .always_answered = [](const HttpRequest& head) { return head.path == "/echo" || head.path == "/kept"; }});
    auto started = listener->start();
    EXPECT_TRUE(started.has_value());
    port = *started;
  }

  ~Fixture() {
    listener->stop();
    held.clear();
    bodies.clear();
  }
  void drop_bodies() {
    std::lock_guard lock(mutex);
    bodies.clear();
  }

  std::shared_ptr<HttpExchange> wait_held(size_t count = 1) {
    for (;;) {
      {
        std::lock_guard lock(mutex);
        if (held.size() >= count) return held[count - 1];
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  bool wait_body_bytes(int64_t bytes) const {
    for (int i = 0; i < 10000 && listener->body_bytes_held() != bytes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return listener->body_bytes_held() == bytes;
  }
  bool wait_left(int count) {
    for (int i = 0; i < 5000 && left.load() < count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return left.load() == count;
  }

  std::atomic<int> left{0};
  std::mutex mutex;
  std::vector<std::shared_ptr<HttpExchange>> held;
  std::vector<HttpRequest> bodies;  // of the held exchanges
  std::unique_ptr<HttpListener> listener;
  uint16_t port = 0;
};

TEST(HttpListener, answers_several_requests_on_one_connection) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  for (int i = 0; i < 3; ++i) {
    connection.send_request("POST", "/echo", "hello " + std::to_string(i));
    const HttpReply reply = connection.read_reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "hello " + std::to_string(i));
  }
}

TEST(HttpListener, answers_pipelined_requests_in_order) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_raw("POST /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\naPOST /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\nb");
  EXPECT_EQ(connection.read_reply().body, "a");
  EXPECT_EQ(connection.read_reply().body, "b");
}

TEST(HttpListener, streams_chunks) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  exchange->begin_stream({});
  exchange->write("one ");
  exchange->write("two");
  exchange->end_stream();
  const HttpReply reply = connection.read_reply();
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.body, "one two");
  EXPECT_EQ(fixture.left.load(), 0);
}

TEST(HttpListener, notices_a_client_that_closes_before_the_answer) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  connection.close();
  EXPECT_TRUE(fixture.wait_left(1));
  EXPECT_TRUE(exchange->disconnected());
  exchange->respond({});  // nobody is there: nothing happens
}

TEST(HttpListener, notices_a_client_that_closes_while_streaming) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  exchange->begin_stream({});
  exchange->write("some");
  ASSERT_TRUE(connection.read_until("some"));
  connection.close();
  EXPECT_TRUE(fixture.wait_left(1));
}

TEST(HttpListener, half_close_is_not_leaving) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  connection.shutdown_write();
  auto exchange = fixture.wait_held();
  ASSERT_TRUE(connection.read_until("100 Continue"));  // the probe has been sent and not answered by a reset
  EXPECT_EQ(fixture.left.load(), 0);
  HttpResponse response;
  response.body = "late";
  exchange->respond(std::move(response));
  const HttpReply reply = connection.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "late");
  EXPECT_EQ(fixture.left.load(), 0);
}

TEST(HttpListener, half_closed_client_that_closes_later_is_noticed) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  connection.shutdown_write();
  auto exchange = fixture.wait_held();
  exchange->begin_stream({});
  ASSERT_TRUE(connection.read_until("\r\n\r\n"));
  connection.close();  // the next probe is answered by a reset
  EXPECT_TRUE(fixture.wait_left(1));
}

TEST(HttpListener, slow_reader_is_cut_off) {
  HttpOptions options;
  options.max_unsent_bytes = 1 << 20;
  Fixture fixture(options);
  HttpConnection connection(fixture.port);
  connection.set_receive_buffer(4096);
  connection.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  exchange->begin_stream({});
  const std::string block(1 << 16, 'x');
  int blocks = 0;
  for (; blocks < 4000 && !exchange->disconnected(); ++blocks) exchange->write(block);
  EXPECT_TRUE(exchange->disconnected());
  EXPECT_LT(blocks, 4000);
  EXPECT_TRUE(fixture.wait_left(1));
}

TEST(HttpListener, large_body_is_refused_and_the_client_hears_why) {
  HttpOptions options;
  options.max_body_bytes = 1 << 20;
  Fixture fixture(options);
  HttpConnection connection(fixture.port);
  const std::string body(8 << 20, 'x');
  connection.send_request("POST", "/echo", body);
  EXPECT_EQ(connection.read_reply().status, 413);
}

TEST(HttpListener, malformed_requests_get_400) {
  Fixture fixture;
  for (const char* text : {"garbage\r\n\r\n", "GET\r\n\r\n", "POST /echo HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                           "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"}) {
    HttpConnection connection(fixture.port);
    connection.send_raw(text);
    EXPECT_EQ(connection.read_reply().status, 400) << text;
  }
}

TEST(HttpListener, short_body_then_end_gets_400) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_raw("POST /echo HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc");
  connection.shutdown_write();
  EXPECT_EQ(connection.read_reply().status, 400);
}

TEST(HttpListener, slow_headers_and_bodies_time_out) {
  HttpOptions options;
  options.header_timeout_s = 1;
  options.body_timeout_s = 1;
  Fixture fixture(options);
  HttpConnection headers(fixture.port), body(fixture.port);
  headers.send_raw("GET /echo HT");
  body.send_raw("POST /echo HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc");
  EXPECT_EQ(headers.read_reply().status, 408);
  EXPECT_EQ(body.read_reply().status, 408);
}

TEST(HttpListener, large_headers_are_refused) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/echo", "", "X-Long: " + std::string(20000, 'x') + "\r\n");
  EXPECT_EQ(connection.read_reply().status, 431);
}

TEST(HttpListener, expect_100_continue_is_answered) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_raw("POST /echo HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(connection.read_until("100 Continue\r\n\r\n"));
  connection.send_raw("abc");
  EXPECT_EQ(connection.read_reply().body, "abc");
}

TEST(HttpListener, http_1_0_stream_ends_with_the_connection) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_raw("GET /hold HTTP/1.0\r\n\r\n");
  auto exchange = fixture.wait_held();
  exchange->begin_stream({});
  exchange->write("plain");
  exchange->end_stream();
  EXPECT_EQ(connection.read_reply().body, "plain");
}

TEST(HttpListener, beyond_max_connections_only_what_is_always_answered) {
  HttpOptions options;
  options.max_connections = 2;
  Fixture fixture(options);
  HttpConnection one(fixture.port), two(fixture.port);
  one.send_request("GET", "/hold");
  two.send_request("GET", "/hold");
  fixture.wait_held(2);
  HttpConnection refused(fixture.port), probe(fixture.port);
  refused.send_request("GET", "/hold");
  const HttpReply reply = refused.read_reply();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.count("retry-after"), 1u);
  probe.send_request("GET", "/echo");
  EXPECT_EQ(probe.read_reply().status, 200);
  EXPECT_TRUE(probe.wait_closed());  // its place is for the next probe
}

TEST(HttpListener, reserved_connections_are_few_and_free_themselves) {
  HttpOptions options;
  options.max_connections = 1;
  Fixture fixture(options);
  HttpConnection one(fixture.port);
  one.send_request("GET", "/hold");
  fixture.wait_held();
  std::vector<std::unique_ptr<HttpConnection>> reserved;
  for (int i = 0; i < 16; ++i) {
    reserved.push_back(std::make_unique<HttpConnection>(fixture.port));
    reserved.back()->send_request("GET", "/kept");
  }
  fixture.wait_held(17);
  HttpConnection beyond(fixture.port);
  EXPECT_EQ(beyond.read_reply().status, 503);  // without being asked
  for (int i = 2; i <= 17; ++i) fixture.wait_held(i)->respond({});
  for (auto& connection : reserved) EXPECT_TRUE(connection->wait_closed());
  HttpConnection silent(fixture.port);
  EXPECT_TRUE(silent.wait_closed());  // soon: others want its place
  HttpConnection bodiless(fixture.port, 10000);
  bodiless.send_raw("GET /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\n");
  EXPECT_EQ(bodiless.read_reply().status, 408);
  HttpConnection probe(fixture.port);
  probe.send_request("GET", "/echo");
  EXPECT_EQ(probe.read_reply().status, 200);
}

TEST(HttpListener, a_refusal_by_the_headers_does_not_read_the_body) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_raw("POST /refused HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(connection.read_reply().status, 401);
  HttpConnection waiting(fixture.port);
  waiting.send_raw("POST /refused HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(waiting.read_reply().interim.empty());  // not asked for the body
}

constexpr int kBody = 256 << 10;
std::string part_of_body(int bytes) {
  return "POST /hold HTTP/1.1\r\nContent-Length: " + std::to_string(kBody) + "\r\n\r\n" + std::string(bytes, 'x');
}

// Two bodies fit.
HttpOptions two_bodies() {
  HttpOptions options;
  options.max_body_bytes = kBody;
  options.max_total_body_bytes = 2 * kBody;
  return options;
}

TEST(HttpListener, bodies_share_a_budget_while_they_arrive_and_while_they_are_held) {
  Fixture fixture(two_bodies());
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
  chunked.send_raw("POST /hold HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + std::string(1024, 'x') + "\r\n");
  EXPECT_EQ(chunked.read_reply().status, 503);
  HttpConnection bodyless(fixture.port);
  bodyless.send_request("GET", "/echo");
  EXPECT_EQ(bodyless.read_reply().status, 200);
}

TEST(HttpListener, promised_bodies_take_nothing) {
  Fixture fixture(two_bodies());
  std::vector<std::unique_ptr<HttpConnection>> promised;
  for (int i = 0; i < 8; ++i) {
    promised.push_back(std::make_unique<HttpConnection>(fixture.port));
    promised.back()->send_raw(part_of_body(0));
  }
  HttpConnection connection(fixture.port);
  connection.send_request("POST", "/echo", std::string(kBody, 'x'));
  EXPECT_EQ(connection.read_reply().status, 200);
}

TEST(HttpListener, the_budget_comes_back_whatever_ends_a_request) {
  Fixture fixture(two_bodies());
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
  large.send_raw("POST /hold HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n50000\r\n" + std::string(0x50000, 'x'));
  EXPECT_EQ(large.read_reply().status, 413);
  EXPECT_TRUE(fixture.wait_body_bytes(0));
  HttpConnection connection(fixture.port);
  for (int i = 0; i < 5; ++i) {
    connection.send_request("POST", "/echo", std::string(kBody, 'x'));
    EXPECT_EQ(connection.read_reply().status, 200);
  }
}

TEST(HttpListener, the_budget_comes_back_from_a_body_that_never_ends) {
  HttpOptions options = two_bodies();
  options.body_timeout_s = 1;
  Fixture fixture(options);
  HttpConnection slow(fixture.port);
  slow.send_raw(part_of_body(kBody / 2));
  EXPECT_EQ(slow.read_reply().status, 408);
  EXPECT_TRUE(fixture.wait_body_bytes(0));
}

TEST(HttpListener, absolute_form_targets) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  for (const char* target : {"http://host/echo", "HTTP://host:8000/echo?a=b", "https://user@[::1]/echo"}) {
    connection.send_raw("GET " + std::string(target) + " HTTP/1.1\r\nHost: host\r\n\r\n");
    EXPECT_EQ(connection.read_reply().status, 200) << target;
  }
  for (const char* target : {"http://host", "http://host?a=/echo", "http://host/hold/echo"}) {
    HttpConnection other(fixture.port);
    other.send_raw("GET " + std::string(target) + " HTTP/1.1\r\nHost: host\r\n\r\n");
  }
  fixture.wait_held(3);
  std::vector<std::string> paths;
  for (const auto& request : fixture.bodies) paths.push_back(request.path);
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(paths, (std::vector<std::string>{"/", "/", "/hold/echo"}));
}

TEST(HttpListener, draining_closes_idle_connections_only) {
  Fixture fixture;
  HttpConnection idle(fixture.port), busy(fixture.port);
  idle.send_request("POST", "/echo", "x");
  EXPECT_EQ(idle.read_reply().status, 200);
  busy.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  fixture.listener->set_draining();
  EXPECT_TRUE(idle.wait_closed());
  exchange->respond({});
  const HttpReply reply = busy.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_TRUE(busy.wait_closed());
}

TEST(HttpListener, port_in_use_is_an_error_that_names_it) {
  Fixture fixture;
  HttpOptions options;
  options.port = fixture.port;
  HttpListener second(options, [](auto, auto) {});
  auto started = second.start();
  ASSERT_FALSE(started.has_value());
  EXPECT_NE(started.error().message().find(std::to_string(fixture.port)), std::string::npos);
}

TEST(HttpListener, stops_with_requests_open) {
  Fixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  fixture.wait_held();
  fixture.listener->stop();
  EXPECT_TRUE(connection.wait_closed());
}

}  // namespace
}  // namespace tailrace
