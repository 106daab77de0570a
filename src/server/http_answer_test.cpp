// How answers are written, and what counts as a client that leaves before they end.
#include "server/http_listener_fixture.h"

namespace tailrace {
namespace {

using test::HttpConnection;
using test::HttpReply;
using test::ListenerFixture;

TEST(HttpAnswer, streams_chunks) {
  ListenerFixture fixture;
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

TEST(HttpAnswer, notices_a_client_that_closes_before_the_answer) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  connection.close();
  EXPECT_TRUE(fixture.wait_left(1));
  EXPECT_TRUE(exchange->disconnected());
  exchange->respond({});  // nobody is there: nothing happens
}

TEST(HttpAnswer, notices_a_client_that_closes_while_streaming) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  exchange->begin_stream({});
  exchange->write("some");
  ASSERT_TRUE(connection.read_until("some"));
  connection.close();
  EXPECT_TRUE(fixture.wait_left(1));
}

TEST(HttpAnswer, half_close_is_not_leaving) {
  ListenerFixture fixture;
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

TEST(HttpAnswer, half_closed_client_that_closes_later_is_noticed) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  connection.shutdown_write();
  auto exchange = fixture.wait_held();
  exchange->begin_stream({});
  ASSERT_TRUE(connection.read_until("\r\n\r\n"));
  connection.close();  // the next probe is answered by a reset
  EXPECT_TRUE(fixture.wait_left(1));
}

TEST(HttpAnswer, slow_reader_is_cut_off) {
  HttpOptions options;
  options.max_unsent_bytes = 1 << 20;
  ListenerFixture fixture(options);
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

TEST(HttpAnswer, one_write_larger_than_the_bound_is_no_slow_reader) {
  HttpOptions options;
  options.max_unsent_bytes = 1 << 16;
  ListenerFixture fixture(options);
  HttpConnection connection(fixture.port);
  connection.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  const std::string large(16 << 20, 'x');  // more than the sockets hold
  exchange->begin_stream({});
  exchange->write(large);
  for (int i = 0; i < 100; ++i) exchange->write("after ");
  EXPECT_FALSE(exchange->disconnected());
  exchange->end_stream();
  const HttpReply reply = connection.read_reply();
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.body.size(), large.size() + 600);
}

TEST(HttpAnswer, what_piles_up_behind_a_large_write_is_bounded) {
  HttpOptions options;
  options.max_unsent_bytes = 1 << 16;
  ListenerFixture fixture(options);
  HttpConnection connection(fixture.port);
  connection.set_receive_buffer(4096);
  connection.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  exchange->begin_stream({});
  exchange->write(std::string(16 << 20, 'x'));
  const std::string block(1 << 10, 'y');
  int blocks = 0;
  for (; blocks < 1000 && !exchange->disconnected(); ++blocks) exchange->write(block);
  EXPECT_TRUE(exchange->disconnected());
  EXPECT_LT(blocks, 3 * 64);
  EXPECT_TRUE(fixture.wait_left(1));
}

TEST(HttpAnswer, http_1_0_stream_ends_with_the_connection) {
  ListenerFixture fixture;
  HttpConnection connection(fixture.port);
  connection.send_raw("GET /hold HTTP/1.0\r\n\r\n");
  auto exchange = fixture.wait_held();
  exchange->begin_stream({});
  exchange->write("plain");
  exchange->end_stream();
  EXPECT_EQ(connection.read_reply().body, "plain");
}

}  // namespace
}  // namespace tailrace
