// What of a JSON schema decides how a family writes a value without JSON's quotes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tailrace {

// An object's declared members, in the schema's order.
struct SchemaMember {
  std::string name;
  nlohmann::ordered_json schema;  // with the root's definitions, so that references in it resolve
  bool required = false;
};

// The members of an object schema; empty where it declares none.
inline std::vector<SchemaMember> schema_members(const nlohmann::ordered_json& schema) {
  std::vector<SchemaMember> out;
  const auto properties = schema.is_object() ? schema.find("properties") : schema.end();
  if (!schema.is_object() || properties == schema.end() || !properties->is_object()) return out;
  const auto required = schema.find("required");
  for (const auto& [name, member] : properties->items()) {
    SchemaMember& entry = out.emplace_back(SchemaMember{name, member});
    for (const char* definitions : {"$defs", "definitions"}) {
      if (member.is_object() && schema.contains(definitions) && !member.contains(definitions)) {
        entry.schema[definitions] = schema[definitions];
      }
    }
    if (required == schema.end() || !required->is_array()) continue;
    for (const auto& needed : *required) entry.required |= needed == name;
  }
  return out;
}

// The texts that a schema of enum or const lists, where all are strings; else empty.
inline std::vector<std::string> listed_strings(const nlohmann::ordered_json& schema) {
  std::vector<std::string> out;
  const auto add = [&out](const nlohmann::ordered_json& value) {
    if (value.is_string()) out.push_back(value.get<std::string>());
    return value.is_string();
  };
  if (const auto fixed = schema.find("const"); fixed != schema.end()) {
    add(*fixed);
  } else if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    for (const auto& value : *values) {
      if (!add(value)) return {};
    }
  }
  return out;
}

}  // namespace tailrace
