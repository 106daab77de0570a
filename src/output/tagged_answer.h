// TaggedAnswer: an answer whose reasoning stands between two markers, and whose rest is left to a ToolStage.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "output/marker_lexer.h"
#include "output/output_parser.h"
#include "output/tool_stage.h"

namespace tailrace {

// How a family marks reasoning.
struct ThinkMarkers {
  std::string begin, end;   // "<think>", "</think>"
  std::string header;       // a line right after `begin` that names the channel and is no reasoning ("thought\n")
  bool reopens = false;     // reasoning may begin again after content
};

// What the prompt says about where the answer begins.
enum class ThinkStart {
  kInside,   // the prompt opened the reasoning, or the model is known to begin with it
  kOutside,  // the prompt closed it: no reasoning unless it reopens
  kUnsaid,   // reasoning only if the answer begins with the marker
};

// Line breaks right inside the reasoning's markers and right after its end belong to the frame. Reasoning that never
// ends stays reasoning. In a call and in content (unless it reopens) the markers are text.
class TaggedAnswer : public OutputParser {
 public:
  // No `think`: the answer has no reasoning. `tools` null: no calls either.
  TaggedAnswer(std::optional<ThinkMarkers> think, ThinkStart start, std::unique_ptr<ToolStage> tools,
               const Tokenizer& tokenizer);

  bool is_control(TokenId id) const override { return lexer_.is_control(id); }
  void control(TokenId id, OutputSink& out) override;
  void text(std::string_view text, OutputSink& out) override;
  void finish(OutputSink& out) override;
  OutputPart part() const override;

 private:
  enum class State { kUnsaid, kHeader, kInside, kAfter, kContent };

  void take(const std::vector<MarkerLexer::Piece>& pieces, OutputSink& out);
  void take_marker(int marker, const std::string& spelling, OutputSink& out);
  void take_text(std::string_view text, OutputSink& out);
  void take_header(std::string_view text, OutputSink& out);
  void take_reasoning(std::string_view text, OutputSink& out);
  void take_content(std::string_view text, OutputSink& out);
  void begin_reasoning();

  const std::optional<ThinkMarkers> think_;
  const std::unique_ptr<ToolStage> tools_;
  MarkerLexer lexer_;
  State state_;
  bool any_reasoning_ = false;  // since it began
  std::string held_;            // line breaks or blanks that may be frame; in kHeader its beginning
};

}  // namespace tailrace
