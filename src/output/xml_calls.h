// Calls as Qwen3-Coder, Qwen3.5 and Qwen3.6 write them: tags around untyped text.
//   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
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

// A value is a string where the schema allows one, and goes out as it comes; else it is the JSON that it spells, or a
// string where it spells none. One line break after the opening tag and one before the closing tag are the frame's. A
// closing tag counts only where the next parameter, or the function's and the call's end, follow; anywhere else it is
// text of the value. The call is reported with its first whole parameter tag, or with its end.
class XmlCalls : public ToolStage {
 public:
  explicit XmlCalls(std::shared_ptr<const OfferedTools> tools) : tools_(std::move(tools)) {}

  std::vector<std::string> markers() const override;
  void text(std::string_view text, OutputSink& out) override;
  void marker(int index, std::string_view spelling, OutputSink& out) override;
  void finish(OutputSink& out) override;
  bool idle() const override { return state_ == State::kIdle; }

 private:
  enum class State {
    kIdle,
    kOpened,     // after <tool_call>
    kName,       // after <function=
    kBetween,    // in the function, outside of parameters
    kKey,        // after <parameter=
    kValue,
    kMaybeNext,  // after </parameter>
    kMaybeEnd,   // after </parameter></function>
    kEnded,      // after </function>, before </tool_call>
  };

  void begin(State state, std::string_view spelling);
  void read_name(std::string_view text, OutputSink& out);
  void read_key(std::string_view text, OutputSink& out);
  void begin_value(std::string_view key, OutputSink& out);
  void value_text(std::string_view text, OutputSink& out);
  void value_goes_on(std::string_view text, OutputSink& out);
  void end_value(OutputSink& out);
  void end_call(OutputSink& out);
  void push(std::string_view json, OutputSink& out);
  void give_up(std::string_view text, OutputSink& out);

  const std::shared_ptr<const OfferedTools> tools_;
  State state_ = State::kIdle;
  std::optional<CallArguments> call_;  // from the function's name on
  std::string function_;               // its name, while and after it is read
  std::string key_;                    // the parameter's name while it is read
  std::string raw_;                    // read and not reported: content, should this turn out not to be a call
  std::string value_;                  // of a parameter that is no string, until it ends
  std::string tail_;                   // of a value: what may be its closing frame
  bool is_string_ = false, first_in_value_ = false, any_parameter_ = false;
  ContentGate gate_;
};

}  // namespace tailrace
