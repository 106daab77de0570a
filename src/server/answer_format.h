// The form that a request asks of its answers: response_format and the fields by which others' clients say more.
#pragma once

#include <optional>
#include <string>

#include "server/json_fields.h"
#include "text/grammar.h"

namespace tailrace {

inline constexpr size_t kMaxSchemaBytes = size_t{256} << 10;
inline constexpr size_t kMaxGrammarBytes = size_t{64} << 10;
inline constexpr size_t kMaxAnswerChoices = 1024;

struct AnswerForm {
  GrammarSource body;
  std::string field;  // that asked for it, for errors
};

// json_object's form: any object.
GrammarSource any_json_object();

// A JSON schema as an object, or as its text; `name` is the field that holds it.
void take_schema(FieldReader& fields, const char* name, const Json& value, GrammarSource& out);

// Reads response_format, structured_outputs, guided_*, regex and ebnf; at most one of them may ask for a form.
void read_answer_form(FieldReader& fields, std::optional<AnswerForm>& out);

}  // namespace tailrace
