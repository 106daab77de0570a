#include "server/event_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>
#include <vector>

namespace tailrace {
namespace {

constexpr int64_t kTime = 1'700'000'000'007;

TEST(EventLog, text_and_json) {
  const Json fields = {{"id", "req_1"},
                       {"path", "/v1/models"},
                       {"status", 200},
                       {"nothing", nullptr},
                       {"list", {"a", 1}}};
  EXPECT_EQ(
      format_event(LogFormat::kText, LogLevel::kInfo, "request", fields, kTime),
      "2023-11-14T22:13:20.007Z info request id=req_1 path=/v1/models status=200 list=[\"a\",1]");
  EXPECT_EQ(
      format_event(LogFormat::kJson, LogLevel::kError, "request", fields, kTime),
      R"({"time":"2023-11-14T22:13:20.007Z","level":"error","event":"request","id":"req_1","path":"/v1/models",)"
      R"("status":200,"list":["a",1]})");
}

TEST(EventLog, nothing_begins_a_new_line_or_a_new_field) {
  const std::string hostile =
      std::string("a\nerror forged=1 \x1b[31m \"x\" \xc2\x9b \xe2\x80\xa8 \xff \x7f \r") + '\0';
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const std::string line =
        format_event(format, LogLevel::kInfo, "request", {{"path", hostile}, {"last", 1}}, kTime);
    for (const unsigned char c : line)
      EXPECT_TRUE((c >= 0x20 && c < 0x7f)) << int{c} << " in " << line;
    EXPECT_EQ(line.find(" forged=1 \x1b"), std::string::npos);
  }
  EXPECT_EQ(format_event(LogFormat::kText, LogLevel::kInfo, "request",
                         {{"path", "a b"}, {"empty", ""}}, kTime),
            "2023-11-14T22:13:20.007Z info request path=\"a b\" empty=\"\"");
  const Json back = Json::parse(
      format_event(LogFormat::kJson, LogLevel::kInfo, "request", {{"path", "a\n\"b"}}, kTime));
  EXPECT_EQ(back["path"], "a\n\"b");
}

// A pipe whose reader reads when the test says so.
struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0); }
  ~Pipe() {
    close_reader();
    ::close(ends[1]);
  }
  void close_reader() {
    if (ends[0] >= 0) ::close(ends[0]);
    ends[0] = -1;
  }
  // Until lines have told of `dropped` lost ones, however many lines that took.
  void read_until_told(uint64_t dropped) {
    char buffer[1 << 16];
    while (told() < dropped) {
      pollfd poller{ends[0], POLLIN, 0};
      ASSERT_GT(::poll(&poller, 1, 20000), 0) << "told of " << told() << " of " << dropped;
      const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
      ASSERT_GT(n, 0);
      seen.append(buffer, static_cast<size_t>(n));
    }
    EXPECT_EQ(told(), dropped);
  }
  // By whole lines, in either form.
  uint64_t told() const {
    uint64_t sum = 0;
    const std::string event = "log_lines_dropped";
    for (size_t at = 0; (at = seen.find(event, at)) != std::string::npos; at += event.size()) {
      const size_t digits = seen.find_first_of("0123456789", at), end = seen.find('\n', at);
      if (end != std::string::npos) sum += std::strtoull(seen.c_str() + digits, nullptr, 10);
    }
    return sum;
  }
  // Until `text` has come, or no writer is left.
  std::string read_until(const std::string& text) {
    char buffer[1 << 16];
    while (seen.find(text) == std::string::npos) {
      const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
      if (n <= 0) break;
      seen.append(buffer, static_cast<size_t>(n));
    }
    return seen;
  }
  int ends[2] = {-1, -1};
  std::string seen;
};

TEST(EventLog, lines_come_in_order_and_all_of_them_at_close) {
  Pipe pipe;
  EventLog log(LogFormat::kText, LogLevel::kInfo, pipe.ends[1]);
  for (int i = 0; i < 100; ++i) log.write(LogLevel::kInfo, "line", {{"number", i}});
  log.write(LogLevel::kDebug, "silent");
  log.close();
  const std::string text = pipe.read_until("number=99\n");
  for (int i = 0, at = 0; i < 100; ++i) {
    at = static_cast<int>(text.find("line number=" + std::to_string(i) + "\n", static_cast<size_t>(at)));
    ASSERT_GE(at, 0) << i;
  }
  EXPECT_EQ(text.find("silent"), std::string::npos);
  EXPECT_EQ(log.num_dropped(), 0u);
}

TEST(EventLog, a_reader_that_is_stuck_holds_up_neither_writers_nor_the_end) {
  Pipe pipe;
  const std::string filler(1000, 'x');
  EventLog log(LogFormat::kText, LogLevel::kInfo, pipe.ends[1]);
  const int kLines = 4000;  // 4 MB: more than a pipe and the log hold
  for (int i = 0; i < kLines; ++i) log.write(LogLevel::kInfo, "line", {{"number", i}, {"filler", filler}});
  EXPECT_GT(log.num_dropped(), 0u);
  EXPECT_LT(log.num_dropped(), static_cast<uint64_t>(kLines) - 900);  // what fits is kept
  log.close(std::chrono::milliseconds(1));
  const uint64_t dropped = log.num_dropped();
  log.write(LogLevel::kInfo, "late");
  EXPECT_EQ(log.num_dropped(), dropped + 1);
  pipe.read_until_told(dropped + 1);  // the last that the thread left behind writes
}

TEST(EventLog, lines_say_how_many_were_dropped_once_it_flows_again) {
  Pipe pipe;
  EventLog log(LogFormat::kJson, LogLevel::kInfo, pipe.ends[1]);
  const std::string filler(1000, 'x');
  int written = 0;
  while (log.num_dropped() < 10) log.write(LogLevel::kInfo, "line", {{"number", written++}, {"filler", filler}});
  pipe.read_until_told(log.num_dropped());
  const std::string& text = pipe.seen;
  EXPECT_NE(text.find("\"level\":\"warning\",\"event\":\"log_lines_dropped\",\"count\":"), std::string::npos);
  std::vector<Json> lines;
  uint64_t numbers = 0;
  for (size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const Json line = Json::parse(text.substr(at, end - at));
    if (line["event"] == "line") ++numbers;
  }
  EXPECT_EQ(numbers + pipe.told(), static_cast<uint64_t>(written));
}

TEST(EventLog, a_reader_that_has_gone_ends_nothing) {
  Pipe pipe;
  pipe.close_reader();
  EventLog log(LogFormat::kText, LogLevel::kInfo, pipe.ends[1]);
  log.write(LogLevel::kInfo, "line");
  log.close();
  EXPECT_EQ(log.num_dropped(), 1u);
}

}  // namespace
}  // namespace tailrace
