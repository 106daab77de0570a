// Calls as Gemma 4 writes them: <|tool_call>call:NAME{key:value,...}<tool_call|>, strings between two <|"|> tokens,
// keys bare, the rest as in JSON.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "output/call_arguments.h"
#include "output/offered_tools.h"
#include "output/tool_stage.h"

namespace tailrace {

// Strings and keys in JSON's quotes are understood too. A bare value that is no JSON is a string.
class GemmaCalls : public ToolStage {
 public:
  explicit GemmaCalls(std::shared_ptr<const OfferedTools> tools) : tools_(std::move(tools)) {}

  std::vector<std::string> markers() const override { return {"<|tool_call>", "<tool_call|>", "<|\"|>"}; }
  void text(std::string_view text, OutputSink& out) override;
  void marker(int index, std::string_view spelling, OutputSink& out) override;
  void finish(OutputSink& out) override;
  bool idle() const override { return state_ == State::kIdle; }

 private:
  enum class State {
    kIdle,
    kHead,      // "call:NAME{"
    kKey,       // a key or the object's end
    kQuotedKey, // between two <|"|>, or in JSON's quotes
    kColon,
    kValue,     // a value, or the array's end
    kBare,      // a number, a word or an unquoted string
    kString,    // between two <|"|>, or in JSON's quotes
    kNext,      // after a value
    kEnded,     // the arguments are complete
  };

  bool step(std::string_view& text, OutputSink& out);
  bool head(std::string_view& text);
  bool key_byte(char c, OutputSink& out);
  bool value_byte(char c, OutputSink& out);
  bool next_byte(char c, OutputSink& out);
  void quoted_text(std::string_view& text, OutputSink& out);
  void quote(OutputSink& out);
  void end_bare(OutputSink& out);
  bool push(std::string_view json, OutputSink& out);
  void give_up(std::string_view text, OutputSink& out);
  void reset(State state);

  const std::shared_ptr<const OfferedTools> tools_;
  State state_ = State::kIdle;
  std::optional<CallArguments> call_;
  std::vector<char> open_;    // '{' and '[' around the place
  std::string word_;          // a key or a bare value
  std::string raw_;           // read and not reported
  size_t tag_bytes_ = 0;      // of the opening tag in raw_
  bool json_quotes_ = false;  // the string ends with '"' instead of the token
  bool escaped_ = false;      // in JSON's quotes, after a backslash
  ContentGate gate_;
};

}  // namespace tailrace
