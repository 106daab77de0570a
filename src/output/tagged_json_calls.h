// Calls as Qwen2.5, Qwen3 and Hermes write them: <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "output/call_json.h"
#include "output/offered_tools.h"
#include "output/tool_stage.h"

namespace tailrace {

class TaggedJsonCalls : public ToolStage {
 public:
  explicit TaggedJsonCalls(std::shared_ptr<const OfferedTools> tools) : tools_(std::move(tools)) {}

  std::vector<std::string> markers() const override { return {"<tool_call>", "</tool_call>"}; }
  void text(std::string_view text, OutputSink& out) override;
  void marker(int index, std::string_view spelling, OutputSink& out) override;
  void finish(OutputSink& out) override;
  bool idle() const override { return !call_; }

 private:
  void give_up(std::string_view rest, OutputSink& out);

  const std::shared_ptr<const OfferedTools> tools_;
  std::optional<CallJson> call_;
  std::string opening_;  // the marker, in case that no call follows
  bool reported_ = false;
  ContentGate gate_;
};

}  // namespace tailrace
