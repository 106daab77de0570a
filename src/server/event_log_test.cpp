#include "server/event_log.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tailrace
