#include "server/answer_format.h"

#include "text/json_schema.h"

namespace tailrace {
namespace {

constexpr size_t kMaxNameBytes = 64;

std::string dumped(const Json& schema) { return schema.dump(-1, ' ', false, Json::error_handler_t::replace); }

void check_words(FieldReader& fields, const char* name, const Json& schema) {
  const Status words = check_schema_words(schema);
  if (!words.ok()) fields.set_error(name, "holds " + words.message(), "invalid_grammar");
}

// The object that `text` begins with, where brackets and quotes say that it ends; "" for none.
std::string_view leading_object(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size() && (i == 0 ? text[0] == '{' : depth > 0); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') ++i;
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    if (depth == 0) return text.substr(0, i + 1);
  }
  return "";
}

// The schemas within a grammar in Lark's syntax. What is none is the compiler's to refuse.
void check_embedded_schemas(FieldReader& fields, const char* name, std::string_view lark) {
  constexpr std::string_view kMark = "%json";
  for (size_t at = lark.find(kMark); at != std::string_view::npos; at = lark.find(kMark, at + 1)) {
    const auto schema = parse_json(leading_object(lark.substr(at + kMark.size())));
    if (schema) check_words(fields, name, *schema);
  }
}

void take_text(FieldReader& fields, const char* name, const Json& value, GrammarKind kind, GrammarSource& out) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return fields.set_error(name, "must be a string that is not empty");
  }
  out = {.outer = "", .kind = kind, .body = value.get<std::string>()};
  if (out.body.size() > kMaxGrammarBytes) {
    fields.set_error(name, "is larger than " + std::to_string(kMaxGrammarBytes >> 10) + " KiB");
  }
  if (kind == GrammarKind::kLark && fields.ok()) check_embedded_schemas(fields, name, out.body);
}

void take_choice(FieldReader& fields, const char* name, const Json& value, GrammarSource& out) {
  if (!value.is_array() || value.empty() || value.size() > kMaxAnswerChoices) {
    return fields.set_error(name, "must be an array of 1 to " + std::to_string(kMaxAnswerChoices) + " strings");
  }
  out = {.outer = "", .kind = GrammarKind::kLark, .body = "start: "};
  for (const Json& choice : value) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      return fields.set_error(name, "must hold strings that are not empty");
    }
    out.body += (out.body.size() > 7 ? " | " : "") + lark_quoted(choice.get_ref<const std::string&>());
  }
  if (out.body.size() > kMaxGrammarBytes) {
    fields.set_error(name, "is larger than " + std::to_string(kMaxGrammarBytes >> 10) + " KiB");
  }
}

void read_json_schema(FieldReader& outer, const Json* value, GrammarSource& out) {
  if (value == nullptr) return outer.set_error("json_schema", "is required");
  if (!value->is_object()) {
    return outer.set_error("json_schema", std::string("must be an object, not ") + json_kind(*value));
  }
  FieldReader fields(*value, "response_format.json_schema.");
  std::string name, description;
  bool strict = false;  // either way the schema is kept
  fields.read("name", name, kMaxNameBytes);
  fields.read("description", description, kMaxSchemaBytes);
  fields.read("strict", strict);
  const Json* schema = fields.get("schema");
  fields.refuse_unknown();
  if (fields.ok() && name.empty()) fields.set_error("name", "is required");
  if (fields.ok() && schema == nullptr) fields.set_error("schema", "is required");
  if (fields.ok()) take_schema(fields, "schema", *schema, out);
  if (!fields.ok()) outer.adopt(*fields.error());
}

bool read_response_format(FieldReader& fields, AnswerForm& out) {
  const Json* value = fields.get("response_format");
  if (value == nullptr) return false;
  if (!value->is_object()) {
    fields.set_error("response_format", std::string("must be an object, not ") + json_kind(*value));
    return false;
  }
  FieldReader format(*value, "response_format.");
  std::string type;
  format.read("type", type, 64);
  const Json* schema = format.get("json_schema");
  format.refuse_unknown();
  out.field = type == "json_schema" ? "response_format.json_schema.schema" : "response_format";
  if (format.ok() && schema != nullptr && type != "json_schema") {
    format.set_error("json_schema", "needs the type json_schema");
  }
  if (format.ok() && type == "json_schema") read_json_schema(format, schema, out.body);
  if (format.ok() && type == "json_object") out.body = any_json_object();
  if (format.ok() && type != "text" && type != "json_object" && type != "json_schema") {
    format.set_error("type", "must be text, json_object or json_schema");
  }
  if (!format.ok()) fields.adopt(*format.error());
  return fields.ok() && type != "text";
}

// One member of structured_outputs, or a field with the same meaning.
bool read_constraint(FieldReader& fields, const char* name, const std::string& kind, GrammarSource& out) {
  const Json* value = fields.get(name);
  if (value == nullptr) return false;
  if (kind == "json") take_schema(fields, name, *value, out);
  if (kind == "regex") take_text(fields, name, *value, GrammarKind::kRegex, out);
  if (kind == "grammar") take_text(fields, name, *value, GrammarKind::kLark, out);
  if (kind == "choice") take_choice(fields, name, *value, out);
  if (kind == "json_object") {
    if (!value->is_boolean()) fields.set_error(name, std::string("must be a boolean, not ") + json_kind(*value));
    out = any_json_object();
    return fields.ok() && *value == true;
  }
  return fields.ok();
}

int read_structured_outputs(FieldReader& fields, AnswerForm& out) {
  const Json* value = fields.get("structured_outputs");
  if (value == nullptr) return 0;
  if (!value->is_object()) {
    fields.set_error("structured_outputs", std::string("must be an object, not ") + json_kind(*value));
    return 0;
  }
  FieldReader inner(*value, "structured_outputs.");
  int count = 0;
  bool asked = false;
  for (const char* kind : {"json", "json_object", "regex", "choice", "grammar"}) {
    asked = asked || inner.get(kind) != nullptr;
    if (!read_constraint(inner, kind, kind, out.body)) continue;
    out.field = std::string("structured_outputs.") + kind;
    ++count;
  }
  inner.refuse_unknown();
  if (!inner.ok()) fields.adopt(*inner.error());
  if (inner.ok() && !asked) fields.set_error("structured_outputs", "holds none of json, json_object, regex, choice, grammar");
  return count;
}

}  // namespace

GrammarSource any_json_object() {
  return {.outer = "", .kind = GrammarKind::kJsonSchema, .body = R"({"type":"object"})"};
}

void take_schema(FieldReader& fields, const char* name, const Json& value, GrammarSource& out) {
  const Json* schema = &value;
  Json parsed;
  if (value.is_string()) {
    auto read = parse_json(value.get_ref<const std::string&>());
    if (!read) return fields.set_error(name, "is not JSON: " + read.error().message);
    parsed = std::move(*read);
    schema = &parsed;
  }
  if (!schema->is_object()) {
    return fields.set_error(name, std::string("must be a JSON schema, not ") + json_kind(*schema));
  }
  // The compiler's own switches, which say how strict it is, are not the client's.
  if (schema->contains("x-guidance")) {
    return fields.set_error(name, "must not hold x-guidance", "unsupported_parameter");
  }
  check_words(fields, name, *schema);
  out = {.outer = "", .kind = GrammarKind::kJsonSchema, .body = dumped(*schema)};
  if (out.body.size() > kMaxSchemaBytes) {
    fields.set_error(name, "is larger than " + std::to_string(kMaxSchemaBytes >> 10) + " KiB");
  }
}

void read_answer_form(FieldReader& fields, std::optional<AnswerForm>& out) {
  AnswerForm form;
  int count = read_response_format(fields, form) ? 1 : 0;
  count += read_structured_outputs(fields, form);
  constexpr std::pair<const char*, const char*> kOthers[] = {
      {"guided_json", "json"}, {"guided_regex", "regex"}, {"guided_choice", "choice"}, {"guided_grammar", "grammar"},
      {"regex", "regex"},      {"ebnf", "grammar"}};
  for (const auto& [name, kind] : kOthers) {
    if (!read_constraint(fields, name, kind, form.body)) continue;
    form.field = name;
    ++count;
  }
  if (!fields.ok() || count == 0) return;
  if (count > 1) return fields.set_error(form.field, "and another form of the answer exclude each other: ask for one");
  out = std::move(form);
}

}  // namespace tailrace
