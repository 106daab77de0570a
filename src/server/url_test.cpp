#include "server/url.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

std::string parts(const std::string& text) {
  const auto url = parse_url(text);
  if (!url) return "fault: " + url.error().message();
  return (url->secure ? "s " : "- ") + url->host + " " + url->port + " " + url->path;
}

TEST(Url, parts) {
  EXPECT_EQ(parts("http://127.0.0.1:8000"), "- 127.0.0.1 8000 ");
  EXPECT_EQ(parts("https://a-b.example/"), "s a-b.example  ");
  EXPECT_EQ(parts("http://[::1]:80/x/y//"), "- ::1 80 /x/y");
  EXPECT_EQ(parts("http://[fe80::1]"), "- fe80::1  ");
}

TEST(Url, text_and_back) {
  for (const char* text : {"http://h", "https://h:1/p%20q/r", "http://[::1]:65535", "http://[::1]/a"})
    EXPECT_EQ(to_string(parse_url(text).value()), text);
  EXPECT_EQ(to_string(parse_url("http://h:1/a/").value()), "http://h:1/a");
}

TEST(Url, anything_else_is_refused_with_the_reason) {
  for (const char* text : {"", "h", "h:1", "//h", "ftp://h", "://h", "HTTP:/h"})
    EXPECT_EQ(parts(text), "fault: it does not begin with http:// or https://") << text;
  for (const char* text : {"http://", "http:///x", "http://:1"})
    EXPECT_EQ(parts(text), "fault: it names no host") << text;
  for (const char* text : {"http://h:", "http://h:0", "http://h:65536", "http://h:1x", "http://h:-1", "http://a:b:1",
                           "http://[::1]:"})
    EXPECT_EQ(parts(text), "fault: a port is a number from 1 to 65535") << text;
  for (const char* text : {"http://u@h", "http://u:p@h:1", "https://h/a@b"})
    EXPECT_EQ(parts(text).rfind("fault: it holds a user name", 0), 0u) << text;
  for (const char* text : {"http://h?x", "http://h/a?x=1", "http://h#f", "http://h/#"})
    EXPECT_EQ(parts(text), "fault: it holds a query or a fragment") << text;
  for (const char* text : {"http://h/v1", "https://h/a/v1/"})
    EXPECT_EQ(parts(text).rfind("fault: leave out /v1", 0), 0u) << text;
  for (const char* text : {"http://[::1", "http://[h]", "http://[]", "http://[::1]x", "http://a b", "http://h\n",
                           "http://h/a b", "http://h/\"", "http://\xc3\xa9"})
    EXPECT_EQ(parts(text).rfind("fault: ", 0), 0u) << text;
}

}  // namespace
}  // namespace tailrace
