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

// A stream whose client reads nothing: it gets `first`, then up to `most` blocks. How many it took to be cut off.
int blocks_to_a_stopped_reader(int64_t max_unsent_bytes, const std::string& first, const std::string& block, int most) {
  HttpOptions options;
  options.max_unsent_bytes = max_unsent_bytes;
  ListenerFixture fixture(options);
  HttpConnection connection(fixture.port);
  connection.set_receive_buffer(4096);
  connection.send_request("GET", "/hold");
  auto exchange = fixture.wait_held();
  exchange->begin_stream({});
  if (!first.empty()) exchange->write(first);
  int blocks = 0;
  for (; blocks < most && !exchange->disconnected(); ++blocks) exchange->write(block);
  EXPECT_TRUE(exchange->disconnected());
  EXPECT_TRUE(fixture.wait_left(1));
  return blocks;
}

TEST(HttpAnswer, slow_reader_is_cut_off) {
  EXPECT_LT(blocks_to_a_stopped_reader(1 << 20, "", std::string(1 << 16, 'x'), 4000), 4000);
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
  const std::string large(16 << 20, 'x'), block(1 << 10, 'y');
  EXPECT_LT(blocks_to_a_stopped_reader(1 << 16, large, block, 1000), 3 * 64);
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
