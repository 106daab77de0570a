// OutputFormat: how a model writes reasoning and tool calls, chosen from its checkpoint or by the command line.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "output/offered_tools.h"
#include "output/output_parser.h"
#include "output/tagged_answer.h"
#include "text/text_model.h"

namespace tailrace {

enum class ToolFormat { kAuto, kNone, kQwen, kQwenCoder, kLlama3, kMistral, kGemma4, kHarmony };
enum class ReasoningFormat { kAuto, kNone, kQwen3, kMistral, kGemma4, kHarmony };

// The names of --tool-call-parser and --reasoning-parser.
const std::map<std::string, ToolFormat>& tool_format_names();
const std::map<std::string, ReasoningFormat>& reasoning_format_names();

struct OutputFormat {
  ToolFormat tools = ToolFormat::kNone;          // never kAuto
  ReasoningFormat reasoning = ReasoningFormat::kNone;
};

// Replaces kAuto by what the chat template says (kNone without one). kInvalidArgument where a chosen format needs
// tokens that the tokenizer lacks.
Expected<OutputFormat> settle_output_format(ToolFormat tools, ReasoningFormat reasoning, const TextModel& text);
// "tool calls qwen, reasoning none", for the start-up report.
std::string describe(const OutputFormat& format);

// How the format marks reasoning; none, and where it does not do so by two markers (gpt-oss).
std::optional<ThinkMarkers> think_markers(ReasoningFormat format);

// Where an answer to `prompt` (as rendered) begins. Of a template that never writes the marker the model is taken to
// begin inside its reasoning.
ThinkStart think_start(const OutputFormat& format, std::string_view prompt, std::string_view template_source);

// The parser of one answer; null where all text is content: no reasoning, and no tools offered.
std::unique_ptr<OutputParser> make_output_parser(const OutputFormat& format, ThinkStart start,
                                                 std::shared_ptr<const OfferedTools> tools,
                                                 const Tokenizer& tokenizer);

}  // namespace tailrace
