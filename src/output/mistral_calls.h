// Calls as Mistral's models write them, after the token [TOOL_CALLS]: [{"name": ..., "arguments": {...}}, ...] up to
// the models of 2024, NAME[ARGS]{...} (NAME[CALL_ID]ID[ARGS]{...}) from then on, one [TOOL_CALLS] a call.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "output/call_arguments.h"
#include "output/call_json.h"
#include "output/offered_tools.h"
#include "output/tool_stage.h"

namespace tailrace {

class MistralCalls : public ToolStage {
 public:
  explicit MistralCalls(std::shared_ptr<const OfferedTools> tools) : tools_(std::move(tools)) {}

  std::vector<std::string> markers() const override { return {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}; }
  void text(std::string_view text, OutputSink& out) override;
  void marker(int index, std::string_view spelling, OutputSink& out) override;
  void finish(OutputSink& out) override;
  bool idle() const override { return state_ == State::kIdle; }

 private:
  enum class State {
    kIdle,
    kTagged,     // after [TOOL_CALLS]
    kElement,    // in the array, an object or its end comes next
    kObject,     // in a call's object
    kSeparator,  // in the array, after an object
    kName,
    kCallId,
    kArguments,
  };

  bool step(std::string_view& text, OutputSink& out);
  void read_object(std::string_view& text, OutputSink& out);
  bool read_arguments(std::string_view& text, OutputSink& out);
  void begin_arguments();
  void give_up(std::string_view text, OutputSink& out);
  void reset();

  const std::shared_ptr<const OfferedTools> tools_;
  State state_ = State::kIdle;
  bool in_array_ = false;
  std::optional<CallJson> object_;
  std::optional<CallArguments> call_;
  std::string name_;
  std::string raw_;  // read and not reported
  ContentGate gate_;
};

}  // namespace tailrace
