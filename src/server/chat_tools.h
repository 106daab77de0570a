// The tool parts of a chat request: the functions offered, the choice among them, and calls in earlier messages.
#pragma once

#include <map>
#include <set>
#include <string>

#include "server/api_error.h"
#include "server/json.h"
#include "server/json_fields.h"

namespace tailrace {

inline constexpr size_t kMaxTools = 512;
inline constexpr size_t kMaxToolNameBytes = 64;
inline constexpr size_t kMaxCallsPerMessage = 256;
inline constexpr size_t kMaxCallIdBytes = 256;

// A function of a namespace, as Responses name it. Models know it as NAMESPACE__NAME.
struct NamespacedName {
  std::string space, name;
  std::string joined() const { return space + "__" + name; }
};

// What a request says about tools.
struct ToolParams {
  Json offered = Json::array();  // as on the wire, null members and "strict" dropped; empty also for tool_choice "none"
  std::set<std::string> strict;  // names of those whose arguments must follow their schema
  std::map<std::string, NamespacedName> namespaced;  // those that are in a namespace, by the names in `offered`
  bool required = false;         // tool_choice: a call must come,
  std::string forced;            // of this function, unless ""
  bool parallel_calls = true;

  // Whether calls have to be kept in form by a grammar.
  bool constrained() const { return required || !strict.empty(); }
};

// The calls in a request's earlier messages.
struct CallHistory {
  std::set<std::string> ids;
  size_t values_left = size_t{1} << 18;  // of their arguments, which are parsed for the template
};

// Reads tools, tool_choice and parallel_tool_calls.
void read_tools(FieldReader& fields, ToolParams& out);

// What an entry of tools says of its function: without null members and "strict". `typed`: a "type" beside the name
// has been read. Adds to the names seen, and to those that are strict.
ApiExpected<Json> check_function(const Json& function, const std::string& path, std::set<std::string>& names,
                                 std::set<std::string>& strict_names, bool typed = false);
// Reads tool_choice but for an object that names a function, which it returns for the dialect to read; else null.
const Json* read_tool_choice(FieldReader& fields, ToolParams& out);
// The name of the function that must be called, one of out.offered.
void read_forced_name(FieldReader& fields, ToolParams& out);
// "mode" and "tools" of a choice of the type allowed_tools: what the latter does not name is offered no longer. `nested`:
// each name stands in a "function", as chats have it.
void read_allowed_tools(FieldReader& fields, bool nested, ToolParams& out);

// A call in an earlier message, its arguments (JSON as text) as an object: templates iterate over them. Adds it to
// `history`; errors are of the fields "name" and "arguments".
ApiExpected<Json> make_call(FieldReader& fields, const std::string& id, const std::string& name,
                            const std::string& arguments, CallHistory& history);

// An assistant message's tool_calls, as make_call makes them. `path`: "messages[3].tool_calls".
ApiExpected<Json> check_tool_calls(const Json& calls, const std::string& path, CallHistory& history);

}  // namespace tailrace
