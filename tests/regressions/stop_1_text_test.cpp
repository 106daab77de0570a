// STOP-1: a stop string over several tokens leaks its first part into the stream.
#include <gtest/gtest.h>

#include <random>

#include "text/stop_matcher.h"

namespace tailrace {
namespace {

struct Outcome {
  std::string text;
  bool stopped;
};

Outcome run(const std::vector<std::string>& pieces, std::vector<std::string> stops) {
  StopMatcher matcher(std::move(stops));
  std::string text;
  for (const std::string& piece : pieces) text += matcher.push(piece);
  text += matcher.finish();
  return {text, matcher.matched()};
}

const std::vector<std::string> kScript = {"DEF", "GG", "HI", "JJ", "KK"};

TEST(Stop1, the_cases_of_the_report) {
  EXPECT_EQ(run(kScript, {"DEFGGHIJ"}).text, "");
  EXPECT_TRUE(run(kScript, {"DEFGGHIJ"}).stopped);
  EXPECT_EQ(run(kScript, {"GHIJ"}).text, "DEFG");
  EXPECT_EQ(run(kScript, {"HIJX"}).text, "DEFGGHIJJKK");
  EXPECT_FALSE(run(kScript, {"HIJX"}).stopped);
  EXPECT_EQ(run(kScript, {"JJK", "GH"}).text, "DEFG");
  EXPECT_EQ(run(kScript, {"KKK"}).text, "DEFGGHIJJKK");
}

TEST(Stop1, nothing_of_a_stop_string_leaves_early) {
  StopMatcher matcher({"DEFGGHIJ"});
  for (const char* piece : {"DEF", "GG", "HI"}) EXPECT_EQ(matcher.push(piece), "");
  EXPECT_EQ(matcher.push("JJ"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.matched_stop(), "DEFGGHIJ");
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(Stop1, only_the_longest_possible_prefix_is_held) {
  StopMatcher matcher({"aab", "abc"});
  EXPECT_EQ(matcher.push("xa"), "x");
  EXPECT_EQ(matcher.push("a"), "");
  EXPECT_EQ(matcher.push("a"), "a");  // "aa" may still become "aab"
  EXPECT_EQ(matcher.push("z"), "aaz");
}

TEST(Stop1, odd_lists) {
  EXPECT_EQ(run(kScript, {""}).text, "DEFGGHIJJKK");
  EXPECT_EQ(run(kScript, {}).text, "DEFGGHIJJKK");
  EXPECT_EQ(run(kScript, {std::string(10000, 'x')}).text, "DEFGGHIJJKK");
  EXPECT_EQ(run({"abcd"}, {"abcd", "bc"}).text, "a");   // completes first
  EXPECT_EQ(run({"abcd"}, {"bcd", "abcd"}).text, "");   // complete together: the longer one
}

// The outcome depends on the text alone, not on where tokens cut it; checked against a plain search.
TEST(Stop1, random_texts_cut_at_random) {
  std::mt19937 random(11);
  const auto word = [&](size_t length) {
    std::string text(length, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::string text = word(random() % 40);
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) stop = word(1 + random() % 5);
    size_t first_end = std::string::npos, length = 0;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      const size_t end = at + stop.size();
      if (end < first_end || (end == first_end && stop.size() > length)) first_end = end, length = stop.size();
    }
    const std::string expected = first_end == std::string::npos ? text : text.substr(0, first_end - length);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, 1 + random() % 4));
      at += pieces.back().size();
    }
    const Outcome outcome = run(pieces, stops);
    ASSERT_EQ(outcome.text, expected) << text;
    ASSERT_EQ(outcome.stopped, first_end != std::string::npos);
  }
}

}  // namespace
}  // namespace tailrace
