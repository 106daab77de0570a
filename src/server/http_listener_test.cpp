#include "server/http_listener.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
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
    listener = std::make_unique<HttpListener>(options, [this](std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
      if (request.path == "/echo") {
        HttpResponse response;
        response.body = request.body;
        return exchange->respond(std::move(response));
      }
      exchange->on_disconnect([this] { left.fetch_add(1); });
      std::lock_guard lock(mutex);
      held.push_back(std::move(exchange));
    });
    auto started = listener->start();
    EXPECT_TRUE(started.has_value());
    port = *started;
  }

  ~Fixture() {
    listener->stop();
    held.clear();
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
  bool wait_left(int count) {
    for (int i = 0; i < 5000 && left.load() < count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return left.load() == count;
  }

  std::atomic<int> left{0};
  std::mutex mutex;
  std::vector<std::shared_ptr<HttpExchange>> held;
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

TEST(HttpListener, too_many_connections_get_503) {
  HttpOptions options;
  options.max_connections = 2;
  Fixture fixture(options);
  HttpConnection one(fixture.port), two(fixture.port);
  one.send_request("GET", "/hold");
  two.send_request("GET", "/hold");
  fixture.wait_held(2);
  HttpConnection three(fixture.port);
  EXPECT_EQ(three.read_reply().status, 503);
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
