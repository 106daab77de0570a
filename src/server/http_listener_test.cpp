#include "server/http_listener.h"

#include "server/http_listener_fixture.h"

namespace tailrace {
namespace {

using test::HttpConnection;
using test::HttpReply;
using test::ListenerFixture;

TEST(HttpListener, answers_several_requests_on_one_connection) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  for (int i = 0; i < 3; ++i) {
    connection.send_request("POST", "/echo", "hello " + std::to_string(i));
    const HttpReply reply = connection.read_reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "hello " + std::to_string(i));
  }
}

TEST(HttpListener, answers_pipelined_requests_in_order) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_raw("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\naPOST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\nb");
  EXPECT_EQ(connection.read_reply().body, "a");
  EXPECT_EQ(connection.read_reply().body, "b");
}

TEST(HttpListener, beyond_max_connections_only_what_is_always_answered) {
  HttpOptions options;
  options.max_connections = 2;
  ListenerFixture fixture(options);
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

TEST(HttpListener, beyond_max_connections_the_one_that_has_been_idle_longest_makes_room) {
  HttpOptions options;
  options.max_connections = 3;
  ListenerFixture fixture(options);
  HttpConnection busy(fixture.port), one(fixture.port), two(fixture.port);
  const auto wait_busy = [&](int count) {
    for (int i = 0; i < 10000 && fixture.listener->num_busy() != count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return fixture.listener->num_busy() == count;
  };
  // And idle again, beside others that have begun a request.
  const auto is_served = [&](HttpConnection& connection, int others) {
    return connection.send_request("POST", "/echo", "x") && connection.read_reply().status == 200 && wait_busy(others);
  };
  busy.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  ASSERT_TRUE(is_served(one, 1) && is_served(two, 1) && is_served(one, 1));
  HttpConnection three(fixture.port);
  EXPECT_TRUE(is_served(three, 1));
  EXPECT_TRUE(two.wait_closed());
  ASSERT_TRUE(is_served(one, 1) && is_served(three, 1)) << "they stay open";
  one.send_raw("GET /echo HTTP/1.1\r\n");  // a part of a head is no request yet
  ASSERT_TRUE(wait_busy(2) && is_served(three, 2));
  HttpConnection four(fixture.port);
  EXPECT_TRUE(one.wait_closed() && is_served(four, 1));
  HttpConnection five(fixture.port);
  EXPECT_TRUE(three.wait_closed() && is_served(five, 1));
  EXPECT_EQ(fixture.listener->num_connections(), 3);
  exchange->respond({});
  EXPECT_EQ(busy.read_reply().status, 200);
}

TEST(HttpListener, silent_connections_keep_no_probe_out) {
  HttpOptions options;
  options.max_connections = 1;
  ListenerFixture fixture(options);
  HttpConnection busy(fixture.port);
  busy.send_request("GET", "/hold");
  fixture.wait_held();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<HttpConnection>> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(std::make_unique<HttpConnection>(fixture.port));
    if (i % 20 != 19) continue;
    HttpConnection probe(fixture.port);
    probe.send_request("GET", "/echo");
    EXPECT_EQ(probe.read_reply().status, 200) << i;
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(std::chrono::duration<double>(took).count(), 2) << "before the silent ones are given up";
}

TEST(HttpListener, reserved_connections_are_few_and_free_themselves) {
  HttpOptions options;
  options.max_connections = 1;
  ListenerFixture fixture(options);
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
  bodiless.send_raw("GET /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n");
  EXPECT_EQ(bodiless.read_reply().status, 408);
  HttpConnection probe(fixture.port);
  probe.send_request("GET", "/echo");
  EXPECT_EQ(probe.read_reply().status, 200);
}

TEST(HttpListener, draining_closes_idle_connections_only) {
  ListenerFixture fixture;
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
  ListenerFixture fixture;
  HttpOptions options;
  options.port = fixture.port;
  HttpListener second(options, [](auto, auto) {});
  auto started = second.start();
  ASSERT_FALSE(started.has_value());
  EXPECT_NE(started.error().message().find(std::to_string(fixture.port)), std::string::npos);
}

TEST(HttpListener, stops_with_requests_open) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  fixture.wait_held();
  fixture.listener->stop();
  EXPECT_TRUE(connection.wait_closed());
}

}  // namespace
}  // namespace tailrace
