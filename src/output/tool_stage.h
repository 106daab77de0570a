// ToolStage: finds the tool calls of one family in what is left of an answer once reasoning is taken out.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "output/output_parser.h"

namespace tailrace {

// One class per family. Markers are numbered as in markers(); their spelling comes along, for where they are only text.
class ToolStage {
 public:
  virtual ~ToolStage() = default;

  virtual std::vector<std::string> markers() const = 0;
  virtual void text(std::string_view text, OutputSink& out) = 0;
  virtual void marker(int index, std::string_view spelling, OutputSink& out) = 0;
  virtual void finish(OutputSink& out) = 0;
  // Outside of anything that is, or may become, a call.
  virtual bool idle() const = 0;
};

// Content around calls: white space that turns out to stand before a call, between calls or after the last is their
// frame and no content.
class ContentGate {
 public:
  void text(std::string_view text, OutputSink& out) {
    const size_t end = text.find_last_not_of(" \n\r\t");
    if (end == std::string_view::npos) {
      held_ += text;
      return;
    }
    out.content(std::exchange(held_, {}));
    out.content(text.substr(0, end + 1));
    held_ = text.substr(end + 1);
  }
  void call_began() {
    held_.clear();
    after_call_ = true;
  }
  void finish(OutputSink& out) {
    if (!after_call_) out.content(held_);
    held_.clear();
  }

 private:
  std::string held_;
  bool after_call_ = false;
};

}  // namespace tailrace
