// Which words of JSON Schema an answer can be kept to.
#pragma once

#include <nlohmann/json.hpp>

#include "base/status.h"

namespace tailrace {

// Ok where each word of the schema is a keyword that grammars keep, an annotation, one's own (x-...), or where "$ref"
// finds definitions. Else kInvalidArgument with the word and its place: `"minimun" at /items/minimun, which ...`.
// Names of members and definitions are no words, and values (enum, const, default, examples) hold none.
Status check_schema_words(const nlohmann::ordered_json& schema);

}  // namespace tailrace
