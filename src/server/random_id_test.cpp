#include "server/random_id.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

namespace tailrace {
namespace {

TEST(RandomId, letters_and_digits_behind_the_prefix_that_never_come_again) {
  std::set<std::string> ids;
  std::string symbols;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = random_id("x-");
    EXPECT_EQ(id.size(), 24u);
    EXPECT_EQ(id.substr(0, 2), "x-");
    symbols += id.substr(2);
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_TRUE(std::all_of(symbols.begin(), symbols.end(), [](unsigned char c) { return std::isalnum(c) != 0; }));
  EXPECT_EQ(std::set<char>(symbols.begin(), symbols.end()).size(), 62u);
}

}  // namespace
}  // namespace tailrace
