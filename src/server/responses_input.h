// The items of Responses requests and answers, brought into the messages that chat templates know.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "server/api_error.h"
#include "server/chat_tools.h"
#include "server/json.h"

namespace tailrace {

// Items in the order in which they happened. Messages (input_text and output_text parts joined), function calls with
// their outputs, reasoning; anything else is an error that names the path, e.g. input[2].content[0].type.
//
// A reasoning item, an assistant's message and the calls behind it become one message of the assistant. System messages
// at the beginning, the instructions among them, become one: templates take no more.
class ResponsesConversation {
 public:
  void add_instructions(const std::string& text);
  // `items`: an array. `path` is put before the index in errors.
  std::optional<ApiError> add_items(const Json& items, const std::string& path);

  // As check_messages gives them; the conversation is empty afterwards.
  Json take_messages();

 private:
  std::optional<ApiError> add_item(const Json& item, const std::string& path);
  std::optional<ApiError> add_message(const Json& item, const std::string& path);
  std::optional<ApiError> add_call(const Json& item, const std::string& path);
  std::optional<ApiError> add_call_output(const Json& item, const std::string& path);
  std::optional<ApiError> add_reasoning(const Json& item, const std::string& path);
  void read_item_labels(FieldReader& fields);
  // The assistant's message that is being put together; a new one where `closed` says that the last takes no more.
  Json& assistant(bool closed);
  void end_assistant();

  Json messages_ = Json::array();
  Json assistant_;  // null: none is open
  CallHistory calls_;
  std::set<std::string> ids_;  // of the items, where they have some
};

// The input as a list of items with ids and parts, as it is stored and listed: a text becomes one message of the user.
// `token` makes the ids unique.
Json input_items(const Json& input, const std::string& token);

}  // namespace tailrace
