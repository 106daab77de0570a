#include "output/families.h"

namespace tailrace::test {

std::vector<FamilyCorpus> all_families() { return {qwen_corpus()}; }

FamilyCorpus qwen_corpus() {
  FamilyCorpus out;
  out.family = {"qwen", {ToolFormat::kQwen, ReasoningFormat::kQwen3}, {}};
  out.corpus = {
      {{"Hel", "lo <b> \n"}, "content 'Hello <b> \n' reasoning ''"},
      {{" \n ", "x"}, "content ' \n x' reasoning ''"},
      {{"<think>", "\nhm", "m.\n\n", "more\n", "</think>", "\n\nYes", " \n", "no\n"},
       "content 'Yes \nno\n' reasoning 'hmm.\n\nmore'"},
      {{"<think>", "cut short\n"}, "content '' reasoning 'cut short'"},
      {{"<think>", "a <tool_call> <think> b", "</think>", "c</think>", "d<think>"},
       "content 'c</think>d<think>' reasoning 'a <tool_call> <think> b'"},
      {{"<think>", "\n\n</think>", "\n\n", "<tool_call>", "\n{\"name\": \"get", "_time\", \"argu", "ments\": {\"tz\": \"U",
        "TC\"}}\n", "</tool_call>"},
       R"(content '' reasoning '' call get_time{"tz":"UTC"})"},
      {{"Let me see.\n", "<tool_call>", "\n{\"arguments\": {\"tz\": \"UTC\"}, \"name\": \"get_time\"}\n", "</tool_call>", "\n",
        "<tool_call>", "\n{\"name\": \"run\", \"arguments\": {\"cmd\": \"echo </tool_call> {\\\"<tool_call>\\\"\"}}\n",
        "</tool_call>", "\n"},
       R"(content 'Let me see.' reasoning '' call get_time{"tz":"UTC"} call run{"cmd":"echo </tool_call> {\"<tool_call>\""})"},
      {{"<tool_call>", "{\"name\": \"run\"}", "</tool_call>", "\nDone."}, "content '\nDone.' reasoning '' call run{}"},
      // No closing brace; no closing tag.
      {{"<tool_call>", "{\"name\": \"run\", \"arguments\": {\"cmd\": \"x\"}", "</tool_call>", "ok"},
       R"(content 'ok' reasoning '' call run{"cmd":"x"})"},
      {{"<tool_call>", "{\"name\": \"run\", \"arguments\": {\"cmd\": \"x\"}}", "<tool_call>",
        "{\"name\": \"run\", \"arguments\": {\"cmd\": \"y\"}}"},
       R"(content '' reasoning '' call run{"cmd":"x"} call run{"cmd":"y"})"},
      // Not a call of an offered function, or none at all: text as it stands.
      {{"<tool_call>", "\n{\"name\": \"rm\", \"arguments\": {}}\n", "</tool_call>"},
       "content '<tool_call>\n{\"name\": \"rm\", \"arguments\": {}}\n</tool_call>' reasoning ''"},
      {{"a <tool_call> is a tag"}, "content 'a <tool_call> is a tag' reasoning ''"},
      {{"<tool_call>", "{\"name\": \"run\", \"arguments\": \"ls\"}", "</tool_call>"},
       "content '<tool_call>{\"name\": \"run\", \"arguments\": \"ls\"}</tool_call>' reasoning ''"},
      {{"<tool_call>", "{\"name\": \"ru"}, "content '<tool_call>{\"name\": \"ru' reasoning ''"},
      // A call that breaks after it began.
      {{"<tool_call>", "{\"name\": \"run\", \"arguments\": {\"cmd\": \"x\", oops}}", "</tool_call>"},
       R"(content ', oops}}</tool_call>' reasoning '' call run{"cmd":"x"} cut)"},
      {{"<tool_call>", "{\"name\": \"run\", \"arguments\": {\"cmd\": \"x"}, R"(content '' reasoning '' call run{"cmd":"x"} cut)"},
  };
  out.pieces = {"<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ", "{\"name\": \"run\", \"arguments\": {",
                "\"name\": \"get_time\"", "{", "}", ", ", "\"", ": ", "\"x\": \"", "\", \"y\": ", "<tool_", "call>", "</thi", "é",
                "{\"arguments\": {\"", "}}"};
  return out;
}

}  // namespace tailrace::test
