#include "output/output_format.h"

#include <algorithm>
#include <optional>

#include "output/gemma_calls.h"
#include "output/harmony_answer.h"
#include "output/llama_calls.h"
#include "output/mistral_calls.h"
#include "output/tagged_json_calls.h"
#include "output/xml_calls.h"

namespace tailrace {
namespace {

bool holds(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool is_harmony(std::string_view source) { return holds(source, "<|channel|>") && holds(source, "<|message|>"); }

// The first that fits: later ones are less particular.
ToolFormat tools_of(std::string_view source) {
  if (is_harmony(source)) return ToolFormat::kHarmony;
  if (holds(source, "<|tool_call>call:")) return ToolFormat::kGemma4;
  if (holds(source, "<tool_call>") && holds(source, "<function=")) return ToolFormat::kQwenCoder;
  if (holds(source, "<tool_call>") && holds(source, "arguments")) return ToolFormat::kQwen;
  if (holds(source, "[TOOL_CALLS]")) return ToolFormat::kMistral;
  if (holds(source, "<|python_tag|>") || (holds(source, "<|start_header_id|>") && holds(source, "\"parameters\""))) {
    return ToolFormat::kLlama3;
  }
  return ToolFormat::kNone;
}

ReasoningFormat reasoning_of(std::string_view source) {
  if (is_harmony(source)) return ReasoningFormat::kHarmony;
  if (holds(source, "<|channel>")) return ReasoningFormat::kGemma4;
  if (holds(source, "[THINK]")) return ReasoningFormat::kMistral;
  if (holds(source, "<think>")) return ReasoningFormat::kQwen3;
  return ReasoningFormat::kNone;
}

std::unique_ptr<ToolStage> make_stage(ToolFormat format, std::shared_ptr<const OfferedTools> tools) {
  if (!tools || tools->empty()) return nullptr;
  switch (format) {
    case ToolFormat::kQwen: return std::make_unique<TaggedJsonCalls>(std::move(tools));
    case ToolFormat::kQwenCoder: return std::make_unique<XmlCalls>(std::move(tools));
    case ToolFormat::kLlama3: return std::make_unique<LlamaCalls>(std::move(tools));
    case ToolFormat::kMistral: return std::make_unique<MistralCalls>(std::move(tools));
    case ToolFormat::kGemma4: return std::make_unique<GemmaCalls>(std::move(tools));
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

std::optional<ThinkMarkers> think_markers(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::kQwen3: return ThinkMarkers{"<think>", "</think>"};
    case ReasoningFormat::kMistral: return ThinkMarkers{"[THINK]", "[/THINK]"};
    case ReasoningFormat::kGemma4: return ThinkMarkers{"<|channel>", "<channel|>", "thought\n", /*reopens=*/true};
    default: return std::nullopt;
  }
}

const std::map<std::string, ToolFormat>& tool_format_names() {
  static const std::map<std::string, ToolFormat> names = {
      {"auto", ToolFormat::kAuto},       {"none", ToolFormat::kNone},
      {"qwen", ToolFormat::kQwen},       {"qwen3_coder", ToolFormat::kQwenCoder},
      {"llama3", ToolFormat::kLlama3},   {"mistral", ToolFormat::kMistral},
      {"gemma4", ToolFormat::kGemma4},   {"gpt-oss", ToolFormat::kHarmony}};
  return names;
}

const std::map<std::string, ReasoningFormat>& reasoning_format_names() {
  static const std::map<std::string, ReasoningFormat> names = {
      {"auto", ReasoningFormat::kAuto},       {"none", ReasoningFormat::kNone},
      {"qwen3", ReasoningFormat::kQwen3},     {"mistral", ReasoningFormat::kMistral},
      {"gemma4", ReasoningFormat::kGemma4},   {"gpt-oss", ReasoningFormat::kHarmony}};
  return names;
}

Expected<OutputFormat> settle_output_format(ToolFormat tools, ReasoningFormat reasoning, const TextModel& text) {
  const std::string_view source = text.chat_template ? std::string_view(text.chat_template->source()) : "";
  OutputFormat out{tools, reasoning};
  if (tools == ToolFormat::kAuto) out.tools = tools_of(source);
  if (reasoning == ReasoningFormat::kAuto) out.reasoning = reasoning_of(source);
  const bool tools_so = out.tools == ToolFormat::kHarmony, reasoning_so = out.reasoning == ReasoningFormat::kHarmony;
  if (!tools_so && !reasoning_so) return out;
  if ((!tools_so && out.tools != ToolFormat::kNone) || (!reasoning_so && out.reasoning != ReasoningFormat::kNone)) {
    return fail(invalid("--tool-call-parser and --reasoning-parser: gpt-oss goes with gpt-oss or none, not beside " +
                        describe(out)));
  }
  if (!HarmonyTokens(*text.tokenizer).usable()) {
    return fail(
        invalid("gpt-oss as parser needs a tokenizer with <|channel|> and <|message|>, which this model's lacks"));
  }
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
  const bool reasoning = format.reasoning == ReasoningFormat::kHarmony;
  if (reasoning || format.tools == ToolFormat::kHarmony) {
    if (format.tools != ToolFormat::kHarmony) tools = nullptr;
    return std::make_unique<HarmonyAnswer>(HarmonyTokens(tokenizer), reasoning, std::move(tools));
  }
  auto think = think_markers(format.reasoning);
  auto stage = make_stage(format.tools, std::move(tools));
  if (!think && !stage) return nullptr;
  return std::make_unique<TaggedAnswer>(std::move(think), start, std::move(stage), tokenizer);
}

}  // namespace tailrace
