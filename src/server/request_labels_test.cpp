// Labels have no effect, in any dialect; of another type or beyond their bounds they are refused.
#include "server/request_labels.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

std::string param_of(void (*read)(FieldReader&), const Json& object) {
  FieldReader fields(object);
  read(fields);
  return fields.ok() ? "" : fields.error()->param;
}

std::string openai(const char* name, const Json& value) { return param_of(read_labels, Json{{name, value}}); }

// `count` characters of two bytes each.
std::string wide(size_t count) {
  std::string out;
  while (count-- > 0) out += "\u00e9";
  return out;
}

TEST(RequestLabels, what_the_standard_allows_passes) {
  Json many = Json::object();
  for (int i = 0; i < 16; ++i) many[std::to_string(i)] = "";
  const std::pair<const char*, Json> fine[] = {{"user", "u"},
                                               {"user", nullptr},
                                               {"safety_identifier", wide(128)},
                                               {"metadata", {{wide(64), wide(512)}}},
                                               {"metadata", many},
                                               {"prompt_cache_key", "k"},
                                               {"prompt_cache_retention", "24h"},
                                               {"prompt_cache_options", {{"mode", "explicit"}}},
                                               {"service_tier", "default"}};
  for (const auto& [name, value] : fine) EXPECT_EQ(openai(name, value), "") << value;
}

TEST(RequestLabels, other_types_and_what_is_too_long_is_named) {
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                           "prompt_cache_options", "metadata", "service_tier"}) {
    for (const Json& value : {Json(5), Json(true), Json::array({"x"})}) EXPECT_EQ(openai(name, value), name) << value;
  }
  EXPECT_EQ(openai("safety_identifier", wide(129)), "safety_identifier");
  EXPECT_EQ(openai("user", std::string(100000, 'x')), "user");
  EXPECT_EQ(openai("prompt_cache_retention", "1h"), "prompt_cache_retention");
  EXPECT_EQ(openai("service_tier", "flex"), "service_tier");
  EXPECT_EQ(openai("metadata", {{"k", 1}}), "metadata.k");
  EXPECT_EQ(openai("metadata", {{"k", wide(513)}}), "metadata.k");
  EXPECT_EQ(openai("metadata", {{wide(65), "v"}}), "metadata");
  Json many = Json::object();
  for (int i = 0; i < 17; ++i) many[std::to_string(i)] = "";
  EXPECT_EQ(openai("metadata", many), "metadata");
}

TEST(RequestLabels, of_anthropics) {
  const auto cached = [](const char* value) {
    return param_of(read_cache_control, {{"cache_control", Json::parse(value)}});
  };
  EXPECT_EQ(cached(R"({"type":"ephemeral","ttl":"1h","scope":"global"})"), "");
  EXPECT_EQ(cached("null"), "");
  EXPECT_EQ(cached(R"("ephemeral")"), "cache_control");
  EXPECT_EQ(cached("{}"), "cache_control.type");
  EXPECT_EQ(cached(R"({"type":"persistent"})"), "cache_control.type");
  EXPECT_EQ(cached(R"({"type":"ephemeral","ttl":5})"), "cache_control.ttl");
  EXPECT_EQ(cached(R"({"type":"ephemeral","colour":"red"})"), "cache_control.colour");
  const auto user = [](const Json& value) { return param_of(read_user_id, {{"metadata", value}}); };
  EXPECT_EQ(user({{"user_id", wide(512)}}), "");
  EXPECT_EQ(user({{"user_id", wide(513)}}), "metadata.user_id");
  EXPECT_EQ(user({{"user_id", 5}}), "metadata.user_id");
  EXPECT_EQ(user({{"name", "x"}}), "metadata.name");
  EXPECT_EQ(user("u"), "metadata");
}

}  // namespace
}  // namespace tailrace
