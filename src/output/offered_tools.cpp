#include "output/offered_tools.h"

#include <algorithm>

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

bool allows_string(const Json& schema, int depth) {
  if (!schema.is_object() || depth > 8) return false;
  if (const auto type = schema.find("type"); type != schema.end()) {
    return *type == "string" ||
           (type->is_array() && std::find(type->begin(), type->end(), "string") != type->end());
  }
  const auto is_string = [](const Json& value) { return value.is_string(); };
  if (const auto fixed = schema.find("const"); fixed != schema.end()) return fixed->is_string();
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    return std::any_of(values->begin(), values->end(), is_string);
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const auto choices = schema.find(key);
    if (choices == schema.end() || !choices->is_array()) continue;
    return std::any_of(choices->begin(), choices->end(),
                       [depth](const Json& choice) { return allows_string(choice, depth + 1); });
  }
  return false;
}

}  // namespace

OfferedTools::OfferedTools(const Json& tools) {
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    Function& entry = functions_.emplace_back();
    entry.name = function.at("name").get<std::string>();
    const auto parameters = function.find("parameters");
    if (parameters == function.end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    for (const auto& [name, schema] : properties->items()) {
      if (allows_string(schema, 0)) entry.strings.push_back(name);
    }
  }
}

const OfferedTools::Function* OfferedTools::find(std::string_view name) const {
  const auto it = std::find_if(functions_.begin(), functions_.end(), [name](const auto& f) { return f.name == name; });
  return it == functions_.end() ? nullptr : &*it;
}

bool OfferedTools::may_begin(std::string_view text) const {
  return std::any_of(functions_.begin(), functions_.end(), [text](const auto& f) { return f.name.starts_with(text); });
}

ParameterType OfferedTools::type_of(std::string_view function, std::string_view parameter) const {
  const Function* found = find(function);
  if (found == nullptr) return ParameterType::kOther;
  const bool is_string = std::find(found->strings.begin(), found->strings.end(), parameter) != found->strings.end();
  return is_string ? ParameterType::kString : ParameterType::kOther;
}

}  // namespace tailrace
