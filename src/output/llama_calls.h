// Calls as Llama 3 writes them: the whole answer is {"name": ..., "parameters": {...}}, perhaps after <|python_tag|>;
// more calls may follow, after ";" or white space.
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

// JSON that is no call of an offered function is content, as is what a python tag leads in otherwise.
class LlamaCalls : public ToolStage {
 public:
  explicit LlamaCalls(std::shared_ptr<const OfferedTools> tools) : tools_(std::move(tools)) {}

  std::vector<std::string> markers() const override { return {"<|python_tag|>"}; }
  void text(std::string_view text, OutputSink& out) override;
  void marker(int index, std::string_view spelling, OutputSink& out) override;
  void finish(OutputSink& out) override;
  bool idle() const override { return !call_; }

 private:
  const std::shared_ptr<const OfferedTools> tools_;
  std::optional<CallJson> call_;
  bool may_begin_ = true;    // nothing but calls so far
  bool after_call_ = false;  // a ";" would be the next call's
  std::string separator_;    // ";" and white space, content if no call follows
  bool reported_ = false;
  ContentGate gate_;
};

}  // namespace tailrace
