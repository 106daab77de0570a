#include "output/output_format.h"

#include <algorithm>
#include <optional>

#include "output/tagged_json_calls.h"

namespace tailrace {
namespace {

bool holds(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

ToolFormat tools_of(std::string_view source) {
  if (holds(source, "<tool_call>") && holds(source, "\"arguments\"")) return ToolFormat::kQwen;
  return ToolFormat::kNone;
}

ReasoningFormat reasoning_of(std::string_view source) {
  if (holds(source, "<think>")) return ReasoningFormat::kQwen3;
  return ReasoningFormat::kNone;
}

std::optional<ThinkMarkers> think_markers(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::kQwen3: return ThinkMarkers{"<think>", "</think>"};
    default: return std::nullopt;
  }
}

std::unique_ptr<ToolStage> make_stage(ToolFormat format, std::shared_ptr<const OfferedTools> tools) {
  if (!tools || tools->empty()) return nullptr;
  switch (format) {
    case ToolFormat::kQwen: return std::make_unique<TaggedJsonCalls>(std::move(tools));
    default: return nullptr;
  }
}

template <typename Format>
std::string name_of(const std::map<std::string, Format>& names, Format format) {
  for (const auto& [name, value] : names) {
    if (value == format) return name;
  }
  return "?";
}

}  // namespace

const std::map<std::string, ToolFormat>& tool_format_names() {
  static const std::map<std::string, ToolFormat> names = {
      {"auto", ToolFormat::kAuto}, {"none", ToolFormat::kNone}, {"qwen", ToolFormat::kQwen}};
  return names;
}

const std::map<std::string, ReasoningFormat>& reasoning_format_names() {
  static const std::map<std::string, ReasoningFormat> names = {
      {"auto", ReasoningFormat::kAuto}, {"none", ReasoningFormat::kNone}, {"qwen3", ReasoningFormat::kQwen3}};
  return names;
}

Expected<OutputFormat> settle_output_format(ToolFormat tools, ReasoningFormat reasoning, const TextModel& text) {
  const std::string_view source = text.chat_template ? std::string_view(text.chat_template->source()) : "";
  OutputFormat out{tools, reasoning};
  if (tools == ToolFormat::kAuto) out.tools = tools_of(source);
  if (reasoning == ReasoningFormat::kAuto) out.reasoning = reasoning_of(source);
  return out;
}

std::string describe(const OutputFormat& format) {
  return "tool calls " + name_of(tool_format_names(), format.tools) + ", reasoning " +
         name_of(reasoning_format_names(), format.reasoning);
}

ThinkStart think_start(const OutputFormat& format, std::string_view prompt, std::string_view template_source) {
  const auto markers = think_markers(format.reasoning);
  if (!markers) return ThinkStart::kOutside;
  const std::string_view end = prompt.substr(0, prompt.find_last_not_of(" \r\n\t") + 1);
  if (end.ends_with(markers->end)) return ThinkStart::kOutside;
  if (end.ends_with(markers->begin)) return ThinkStart::kInside;
  return markers->reopens || holds(template_source, markers->begin) ? ThinkStart::kUnsaid : ThinkStart::kInside;
}

std::unique_ptr<OutputParser> make_output_parser(const OutputFormat& format, ThinkStart start,
                                                 std::shared_ptr<const OfferedTools> tools,
                                                 const Tokenizer& tokenizer) {
  auto think = think_markers(format.reasoning);
  auto stage = make_stage(format.tools, std::move(tools));
  if (!think && !stage) return nullptr;
  return std::make_unique<TaggedAnswer>(std::move(think), start, std::move(stage), tokenizer);
}

}  // namespace tailrace
