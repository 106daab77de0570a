// OfferedTools: the functions that a request offers, as far as reading their calls needs them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace {

// What a parameter's text has to become, where a family writes values without quotes.
enum class ParameterType { kString, kOther };

class OfferedTools {
 public:
  OfferedTools() = default;
  // `tools`: OpenAI's array, already checked: [{"type": "function", "function": {"name", "parameters"?, ...}}].
  explicit OfferedTools(const nlohmann::ordered_json& tools);

  bool empty() const { return functions_.empty(); }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // Whether some offered name begins with `text`.
  bool may_begin(std::string_view text) const;
  // kString when the schema says that a string is allowed (type, a list of types, enum or const, anyOf, oneOf).
  ParameterType type_of(std::string_view function, std::string_view parameter) const;

 private:
  struct Function {
    std::string name;
    std::vector<std::string> strings;  // its parameters that are strings
  };
  const Function* find(std::string_view name) const;

  std::vector<Function> functions_;
};

}  // namespace tailrace
