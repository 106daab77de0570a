#include "server/query.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(Query, names_and_values_are_decoded) {
  const Query query("a=1&b%20c=d%2Fe+f&empty=&bare&&bad=%4&worse=%zz&plus%2B=%2b");
  EXPECT_EQ(query.find("a"), "1");
  EXPECT_EQ(query.find("b c"), "d/e f");
  EXPECT_EQ(query.find("empty"), "");
  EXPECT_EQ(query.find("bare"), "");
  EXPECT_EQ(query.find("bad"), "%4");
  EXPECT_EQ(query.find("worse"), "%zz");
  EXPECT_EQ(query.find("plus+"), "+");
  EXPECT_EQ(query.find(""), std::nullopt);
  EXPECT_EQ(Query("").find("a"), std::nullopt);
}

TEST(Query, what_is_not_listed_or_stands_twice_is_named) {
  EXPECT_FALSE(Query("limit=1&after=x").fault("limit order after", "GET /x"));
  EXPECT_FALSE(Query("").fault("", "GET /x"));
  EXPECT_EQ(Query("limit=1&lim=2").fault("limit order after", "GET /x")->param, "lim");
  EXPECT_EQ(Query("order%20after=1").fault("limit order after", "GET /x")->param, "order after");
  EXPECT_EQ(Query("=1").fault("limit", "GET /x")->http_status, 400);
  EXPECT_EQ(Query("limit=1&limit=1").fault("limit", "GET /x")->message, "The query parameter limit is given twice.");
  EXPECT_EQ(Query("a=1").fault("", "GET /x")->message, "GET /x takes no query parameters, not 'a'.");
  EXPECT_EQ(Query("a=1").fault("b c", "GET /x")->message, "GET /x takes the query parameters b, c, not 'a'.");
}

}  // namespace
}  // namespace tailrace
