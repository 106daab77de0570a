#include "text/json_schema.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

std::string fault(const char* schema) {
  const Status status = check_schema_words(nlohmann::ordered_json::parse(schema));
  return status.ok() ? "" : status.message().substr(0, status.message().find(", which"));
}

TEST(JsonSchema, a_word_that_is_no_keyword_is_named_with_its_place) {
  EXPECT_EQ(fault(R"({"type":"integer","minimumm":3})"), "\"minimumm\" at /minimumm");
  EXPECT_EQ(fault(R"({"properties":{"a/b":{"items":{"Type":"string"}}}})"), "\"Type\" at /properties/a~1b/items/Type");
  EXPECT_EQ(fault(R"({"anyOf":[{"type":"null"},{"enums":[1]}]})"), "\"enums\" at /anyOf/1/enums");
  EXPECT_EQ(fault(R"({"prefixItems":[{}],"items":[{"max":1}]})"), "\"max\" at /items/0/max");
  EXPECT_EQ(fault(R"({"additionalProperties":{"lenght":1}})"), "\"lenght\" at /additionalProperties/lenght");
  EXPECT_EQ(fault(R"({"$defs":{"a":{"patern":"x"}}})"), "\"patern\" at /$defs/a/patern");
  EXPECT_EQ(fault(R"({"":1})"), "\"\" at /");
  const Status status = check_schema_words({{"minimumm", 3}});
  EXPECT_NE(status.message().find("no keyword of JSON Schema"), std::string::npos);
}

TEST(JsonSchema, a_keyword_that_cannot_be_kept_is_named_as_such) {
  for (const std::string word : {"not", "if", "uniqueItems", "contains", "dependencies", "nullable"}) {
    const Status status = check_schema_words({{"items", {{word, true}}}});
    EXPECT_EQ(status.message(), "\"" + word + "\" at /items/" + word + ", which answers cannot be kept to");
  }
}

TEST(JsonSchema, annotations_and_own_words_pass) {
  EXPECT_EQ(fault(R"({"$schema":"s","$id":"i","title":"t","description":"d","$comment":"c","deprecated":true,)"
                  R"("readOnly":true,"writeOnly":true,"x-order":1,"discriminator":{"propertyName":"k"},"example":1})"),
            "");
  EXPECT_EQ(fault("true"), "");
}

TEST(JsonSchema, names_and_values_are_no_words) {
  EXPECT_EQ(fault(R"({"properties":{"minimumm":{},"if":{"type":"string"}},"required":["minimumm"],)"
                  R"("patternProperties":{"^uniq":{}},"$defs":{"not":{}},"definitions":{"nope":{}}})"),
            "");
  EXPECT_EQ(fault(R"({"enum":[{"nope":1}],"default":{"nope":1},"examples":[{"not":{}}],"const":{"nope":1}})"), "");
  EXPECT_EQ(fault(R"({"properties":{"properties":{"properties":{"nope":{"nope":1}}}}})"),
            "\"nope\" at /properties/properties/properties/nope/nope");
}

// As OpenAPI's tools place them.
TEST(JsonSchema, definitions_are_where_references_find_them) {
  EXPECT_EQ(fault(R"({"$ref":"#/components/schemas/A","components":{"schemas":{"A":{"type":"string"}}}})"), "");
  EXPECT_EQ(fault(R"({"$ref":"#/components/schemas/A","components":{"schemas":{"A":{"minn":1}}}})"),
            "\"minn\" at /components/schemas/A/minn");
  EXPECT_EQ(fault(R"({"$ref":"#/componentsX/A","components":{}})"), "\"components\" at /components");
  EXPECT_EQ(fault(R"({"$ref":"#/nowhere/~5","type":"string"})"), "") << "the compiler says so";
  EXPECT_EQ(fault(R"({"$ref":"#"})"), "");
}

}  // namespace
}  // namespace tailrace
