#include "text/json_schema.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

// What llguidance implements.
constexpr std::string_view kKept[] = {
    "$ref",        "additionalItems",  "additionalProperties", "allOf",         "anyOf",         "const",
    "enum",        "exclusiveMaximum", "exclusiveMinimum",     "format",        "items",         "maxItems",
    "maxLength",   "maxProperties",    "maximum",              "minItems",      "minLength",     "minProperties",
    "minimum",     "multipleOf",       "oneOf",                "pattern",       "patternProperties",
    "prefixItems", "properties",       "required",             "type"};
// What is true of any value. The last ones are OpenAPI's, whose tools write schemas too.
constexpr std::string_view kAnnotations[] = {
    "$anchor",  "$comment",      "$defs",       "$id",         "$schema",    "contentEncoding", "contentMediaType",
    "default",  "definitions",   "deprecated",  "description", "examples",   "id",              "readOnly",
    "title",    "writeOnly",     "discriminator", "example",   "externalDocs", "xml"};
// The other keywords of all drafts, and OpenAPI's.
constexpr std::string_view kNotKept[] = {
    "$dynamicAnchor", "$dynamicRef",   "$recursiveAnchor",  "$recursiveRef",    "$vocabulary", "contains",
    "contentSchema",  "dependencies",  "dependentRequired", "dependentSchemas", "else",        "if",
    "maxContains",    "minContains",   "not",               "nullable",         "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems"};
constexpr std::string_view kOfNamedSchemas[] = {"$defs", "definitions", "patternProperties", "properties"};
constexpr std::string_view kOfSchemas[] = {"additionalItems", "additionalProperties", "allOf",      "anyOf",
                                           "items",           "oneOf",                "prefixItems"};

template <size_t N>
bool is_among(const std::string_view (&words)[N], std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

std::string pointer_to(const std::string& parent, const std::string& member) {
  std::string out = parent + "/";
  for (const char c : member) {
    if (c == '~') out += "~0";
    if (c == '/') out += "~1";
    if (c != '~' && c != '/') out += c;
  }
  return out;
}

class WordCheck {
 public:
  explicit WordCheck(const Json& root) : root_(root) { collect_refs(root); }

  Status run() {
    Status status = check(root_, "");
    for (auto ref = refs_.begin(); status.ok() && ref != refs_.end(); ++ref) {
      try {
        const Json::json_pointer pointer(*ref);
        if (root_.contains(pointer)) status = check(root_.at(pointer), *ref);
      } catch (const Json::exception&) {  // no pointer: the compiler will say so
      }
    }
    return status;
  }

 private:
  void collect_refs(const Json& value) {
    if (!value.is_structured()) return;
    for (const auto& [name, part] : value.items()) {
      if (value.is_object() && name == "$ref" && part.is_string()) {
        const std::string& ref = part.get_ref<const std::string&>();
        if (ref.starts_with("#/")) refs_.insert(ref.substr(1));
      }
      collect_refs(part);
    }
  }

  bool leads_to_definitions(const std::string& pointer) const {
    const auto below = refs_.lower_bound(pointer + "/");
    return refs_.count(pointer) > 0 || (below != refs_.end() && below->starts_with(pointer + "/"));
  }

  Status check(const Json& schema, const std::string& at) {
    if (!schema.is_object() || !seen_.insert(&schema).second) return Status();
    for (const auto& [word, value] : schema.items()) {
      const std::string here = pointer_to(at, word);
      if (is_among(kKept, word) || is_among(kAnnotations, word)) {
        if (Status status = check_parts(word, value, here); !status.ok()) return status;
      } else if (!word.starts_with("x-") && !leads_to_definitions(here)) {
        return invalid("\"" + word + "\" at " + here + ", which " +
                       (is_among(kNotKept, word) ? "answers cannot be kept to"
                                                 : "is no keyword of JSON Schema (words of one's own begin with x-)"));
      }
    }
    return Status();
  }

  Status check_parts(const std::string& word, const Json& value, const std::string& at) {
    const bool named = is_among(kOfNamedSchemas, word) && value.is_object();
    if (!named && !is_among(kOfSchemas, word)) return Status();
    if (!named && !value.is_array()) return check(value, at);
    for (const auto& [name, part] : value.items()) {
      if (Status status = check(part, pointer_to(at, name)); !status.ok()) return status;
    }
    return Status();
  }

  const Json& root_;
  std::set<std::string> refs_;  // within the document, as pointers
  std::set<const Json*> seen_;
};

}  // namespace

Status check_schema_words(const Json& schema) { return WordCheck(schema).run(); }

}  // namespace tailrace
