// ResponseItems: an answer's pieces as the output items of /v1/responses, and the events that tell how they grow.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "server/answer_writer.h"
#include "server/chat_tools.h"
#include "text/tokenizer.h"

namespace tailrace {

// Reasoning, messages and function calls in the order in which they were generated; each is closed before the next
// begins.
class ResponseItems {
 public:
  struct Rules {
    std::string token;  // part of the items' ids
    bool encrypted_reasoning = false;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::map<std::string, NamespacedName> namespaced;  // as in ToolParams
  };
  // Told of each event: its type and its members. Null: nobody listens.
  using Listener = std::function<void(const char* type, Json members)>;

  ResponseItems(Rules rules, Listener listener) : rules_(std::move(rules)), listener_(std::move(listener)) {}

  void add(ChoiceDelta delta);
  // The answer is over. `cut`: before its end, so that the item it was at is incomplete.
  void finish(bool cut);

  const Json& output() const { return output_; }

 private:
  void begin(const AnswerPiece& piece);
  void grow(const std::string& text);
  void close(const char* status);
  Json take_logprobs();
  void tell(const char* type, Json members);
  void tell_part(const char* type);
  Json part_json() const;

  const Rules rules_;
  const Listener listener_;
  Json output_ = Json::array();     // closed items
  Json item_;                       // the open one; null: none
  AnswerPiece open_;                // what kind it is
  std::string text_;                // of the open item
  Json logprobs_ = Json::array();   // of the open item
  int32_t run_ = 0;                 // items begun, the open one included
  std::deque<ListedToken> tokens_;  // whose item has not begun
};

}  // namespace tailrace
