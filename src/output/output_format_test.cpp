#include "output/output_format.h"

#include <gtest/gtest.h>

#include "support/small_tokenizers.h"
#include "support/text_fixture.h"

namespace tailrace {
namespace {

TextModel model_of(const std::string& source, const std::vector<std::string>& specials = {}) {
  GgufTokenizer spec = small_byte_level();
  for (const auto& token : specials) {
    spec.tokens.push_back(token);
    spec.types.push_back(3);
  }
  TextModel text;
  text.tokenizer = Tokenizer::from_gguf(spec).value();
  if (!source.empty()) text.chat_template = compile_or_fail(source);
  return text;
}

std::string settled(const TextModel& text, ToolFormat tools = ToolFormat::kAuto,
                    ReasoningFormat reasoning = ReasoningFormat::kAuto) {
  const auto format = settle_output_format(tools, reasoning, text);
  return format ? describe(*format) : "error: " + format.error().message();
}

TEST(OutputFormat, found_in_the_chat_template) {
  EXPECT_EQ(settled(model_of("")), "tool calls none, reasoning none");
  EXPECT_EQ(settled(model_of("<|im_start|>{{ messages[0].content }}")), "tool calls none, reasoning none");
  EXPECT_EQ(settled(model_of(R"({{ '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' }}<think></think>)")),
            "tool calls qwen, reasoning qwen3");
  EXPECT_EQ(settled(model_of("<tool_call><function=f></function></tool_call><think>")),
            "tool calls qwen3_coder, reasoning qwen3");
  EXPECT_EQ(settled(model_of("<|start_header_id|>{{ '\"parameters\": ' }}")), "tool calls llama3, reasoning none");
  EXPECT_EQ(settled(model_of("[TOOL_CALLS][THINK]")), "tool calls mistral, reasoning mistral");
  EXPECT_EQ(settled(model_of("<|tool_call>call:<|channel>thought")), "tool calls gemma4, reasoning gemma4");
  EXPECT_EQ(settled(model_of("<|channel|><|message|>", {"<|channel|>", "<|message|>"})),
            "tool calls gpt-oss, reasoning gpt-oss");
}

TEST(OutputFormat, the_command_line_wins) {
  const TextModel text = model_of("[TOOL_CALLS]<think>");
  EXPECT_EQ(settled(text, ToolFormat::kQwen), "tool calls qwen, reasoning qwen3");
  EXPECT_EQ(settled(text, ToolFormat::kAuto, ReasoningFormat::kNone), "tool calls mistral, reasoning none");
  EXPECT_NE(settled(text, ToolFormat::kHarmony).find("gpt-oss goes with gpt-oss"), std::string::npos);
  EXPECT_NE(settled(text, ToolFormat::kHarmony, ReasoningFormat::kNone).find("<|channel|>"), std::string::npos);
}

TEST(OutputFormat, where_an_answer_begins) {
  const OutputFormat qwen{ToolFormat::kNone, ReasoningFormat::kQwen3},
      gemma{ToolFormat::kNone, ReasoningFormat::kGemma4};
  EXPECT_EQ(think_start(qwen, "assistant\n<think>\n", "<think>"), ThinkStart::kInside);
  EXPECT_EQ(think_start(qwen, "assistant\n<think>\n\n</think>\n\n", "<think>"), ThinkStart::kOutside);
  EXPECT_EQ(think_start(qwen, "assistant\n", "<think>"), ThinkStart::kUnsaid);
  EXPECT_EQ(think_start(qwen, "assistant\n", "no marker"), ThinkStart::kInside);
  EXPECT_EQ(think_start(gemma, "model\n", "no marker"), ThinkStart::kUnsaid);
  EXPECT_EQ(think_start(gemma, "model\n<|channel>thought\n<channel|>", ""), ThinkStart::kOutside);
  EXPECT_EQ(think_start({}, "<think>", ""), ThinkStart::kOutside);
}

TEST(OutputFormat, no_parser_where_all_is_content) {
  const TextModel text = model_of("");
  const auto tools = std::make_shared<const OfferedTools>(
      nlohmann::ordered_json::parse(R"([{"type":"function","function":{"name":"f"}}])"));
  EXPECT_EQ(make_output_parser({}, ThinkStart::kUnsaid, tools, *text.tokenizer), nullptr);
  EXPECT_EQ(make_output_parser({ToolFormat::kQwen}, ThinkStart::kUnsaid, nullptr, *text.tokenizer), nullptr);
  EXPECT_NE(make_output_parser({ToolFormat::kQwen}, ThinkStart::kUnsaid, tools, *text.tokenizer), nullptr);
}

}  // namespace
}  // namespace tailrace
