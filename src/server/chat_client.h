// `tailrace chat`: a conversation in the terminal, with a server that it attaches to or starts.
#pragma once

#include <iosfwd>

#include "server/chat_connection.h"
#include "server/config.h"
#include "server/json.h"

namespace tailrace {

// Runs until /exit, Ctrl-C at the prompt or the end of stdin. Exit code: 0, 1 when a server cannot be reached or an
// answer failed with stdin not a terminal, 2 for bad arguments.
int run_chat(const ChatConfig& config);

// The conversation apart from terminal and processes: takes lines, prints answers.
class ChatSession {
 public:
  // `model` is the name sent in requests. `stop` turns true when the user wants the current answer to end.
  ChatSession(const ChatConfig& config, const ServerAddress& address, std::string model, std::function<bool()> stop,
              std::ostream& out);

  enum class Outcome { kAnswered, kStopped, kCommand, kFailed, kExit };
  // One line of input: a command (/help, /reset, /exit) or a message. A failed message leaves the history as it was;
  // of a stopped answer the part that came stays in it.
  Outcome handle_line(const std::string& line);

  const Json& history() const { return messages_; }
  // "12 tokens, 34.5 tokens/s" of the last answer; "" when the server did not say.
  const std::string& last_timing() const { return last_timing_; }

 private:
  Outcome ask(const std::string& text);
  void on_event(std::string_view data, std::string& answer, std::string& error);

  const ChatConfig& config_;
  const std::string model_;
  ChatConnection connection_;
  std::ostream& out_;
  Json messages_ = Json::array();
  bool thinking_ = false;  // reasoning is shown, content has not begun
  std::string last_timing_;
};

}  // namespace tailrace
