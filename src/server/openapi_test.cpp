#include "server/openapi.h"

#include <gtest/gtest.h>

#include <set>

#include "server/json.h"
#include "server/routes.h"

namespace tailrace {
namespace {

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

TEST(OpenApi, every_route_is_described_and_nothing_else) {
  const Json document = parse_json(openapi_text()).value();
  std::set<std::string> described, served;
  for (const auto& [path, methods] : document.at("paths").items()) {
    for (const auto& [method, operation] : methods.items()) described.insert(method + " " + path);
  }
  for (const Route& route : routes())
    served.insert(lower(route.method) + " " + std::string(route.path));
  EXPECT_EQ(described, served);
}

TEST(OpenApi, what_needs_no_key_says_so_and_all_else_does_not) {
  const Json document = parse_json(openapi_text()).value();
  for (const Route& route : routes()) {
    const Json& operation =
        document.at("paths").at(std::string(route.path)).at(lower(route.method));
    const bool open = route.kind == RouteKind::kOpen || route.kind == RouteKind::kProbe;
    EXPECT_EQ(operation.contains("security") && operation["security"].empty(), open) << route.path;
  }
}

void check_references(const Json& part, const Json& document) {
  if (part.is_object() && part.contains("$ref")) {
    const std::string target = part["$ref"];
    ASSERT_EQ(target.rfind("#/", 0), 0u) << target;
    EXPECT_TRUE(document.contains(nlohmann::ordered_json::json_pointer(target.substr(1))))
        << target;
  }
  for (const Json& inner : part) {
    if (inner.is_structured()) check_references(inner, document);
  }
}

TEST(OpenApi, references_lead_somewhere_and_operations_have_names_of_their_own) {
  const Json document = parse_json(openapi_text()).value();
  check_references(document, document);
  std::set<std::string> names;
  for (const auto& [path, methods] : document.at("paths").items()) {
    for (const auto& [method, operation] : methods.items()) {
      EXPECT_TRUE(names.insert(operation.at("operationId").get<std::string>()).second) << path;
    }
  }
}

}  // namespace
}  // namespace tailrace
