#include "output/families.h"

namespace tailrace::test {

std::vector<FamilyCorpus> all_families() {
  return {qwen_corpus(), qwen_coder_corpus(), llama_corpus(), mistral_corpus(), gemma_corpus(), harmony_corpus()};
}

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
      {{"<think>", "\n\n</think>", "\n\n", "<tool_call>", "\n{\"name\": \"get", "_time\", \"argu",
        "ments\": {\"tz\": \"U", "TC\"}}\n", "</tool_call>"},
       R"(content '' reasoning '' call get_time{"tz":"UTC"})"},
      {{"Let me see.\n", "<tool_call>", "\n{\"arguments\": {\"tz\": \"UTC\"}, \"name\": \"get_time\"}\n",
        "</tool_call>", "\n", "<tool_call>",
        "\n{\"name\": \"run\", \"arguments\": {\"cmd\": \"echo </tool_call> {\\\"<tool_call>\\\"\"}}\n", "</tool_call>",
        "\n"},
       R"(content 'Let me see.' reasoning '' call get_time{"tz":"UTC"} )"
       R"(call run{"cmd":"echo </tool_call> {\"<tool_call>\""})"},
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
      // Text where the closing tag should be.
      {{"<tool_call>", "{\"name\": \"run\"}", " ", "x", " </tool_call>"},
       "content 'x </tool_call>' reasoning '' call run{}"},
      // A call that breaks after it began.
      {{"<tool_call>", "{\"name\": \"run\", \"arguments\": {\"cmd\": \"x\", oops}}", "</tool_call>"},
       R"(content ', oops}}</tool_call>' reasoning '' call run{"cmd":"x"} cut)"},
      {{"<tool_call>", "{\"name\": \"run\", \"arguments\": {\"cmd\": \"x"},
       R"(content '' reasoning '' call run{"cmd":"x"} cut)"},
  };
  out.pieces = {"<think>",
                "</think>",
                "<tool_call>",
                "</tool_call>",
                "\n",
                " ",
                "{\"name\": \"run\", \"arguments\": {",
                "\"name\": \"get_time\"",
                "{",
                "}",
                ", ",
                "\"",
                ": ",
                "\"x\": \"",
                "\", \"y\": ",
                "<tool_",
                "call>",
                "</thi",
                "é",
                "{\"arguments\": {\"",
                "}}"};
  return out;
}

FamilyCorpus qwen_coder_corpus() {
  FamilyCorpus out;
  out.family = {"qwen3_coder", {ToolFormat::kQwenCoder, ReasoningFormat::kQwen3}, {}, ThinkStart::kInside};
  out.corpus = {
      // The public case qxml, after a thought.
      {{"hm", "</think>", "\n\n", "<tool_call>", "\n<function=write", "_file>\n<parameter=pa", "th>\n/tmp/a",
        ".txt\n</param", "eter>\n<parameter=content>\nline1\n", "</tool_", "call> is text",
        "\n</parameter>\n<parameter=n>\n", "3\n</parameter>\n</func", "tion>\n", "</tool_call>"},
       R"(content '' reasoning 'hm' call write_file{"path":"/tmp/a.txt",)"
       R"("content":"line1\n</tool_call> is text","n":3})"},
      // The public case qbad: a parameter without a name.
      {{"</think>", "<tool_", "call>\n<function=run>\n<parameter=", "\necho hi", "\n</parameter>\n</function>\n</tool",
        "_call>"},
       "content '<tool_call>\n<function=run>\n<parameter=\necho hi\n</parameter>\n</function>\n</tool_call>' reasoning "
       "''"},
      {{"cut", " short"}, "content '' reasoning 'cut short'"},
      {{"</think>\n\nI write. \n\n<tool_call>\n<function=run>\n</function>\n</tool_call>\n"},
       "content 'I write.' reasoning '' call run{}"},
      // Values by the schema: null is a string where strings are allowed, else what JSON says, else a string.
      {{"</think><tool_call><function=write_file><parameter=content>\nnull\n</parameter><parameter=options>\n{\"a\": "
        "[1, ",
        "True]}\n</parameter>\n<parameter=flag>False</parameter><parameter=n>\nabout "
        "3\n</parameter><parameter=x>[1</parameter>",
        "</function></tool_call>"},
       R"(content '' reasoning '' call write_file{"content":"null","options":{"a":[1,true]},)"
       R"("flag":false,"n":"about 3","x":"[1"})"},
      // One line break of the frame on each side; the text's own stay.
      {{"</think><tool_call>\n<function=run>\n<parameter=cmd>\n\n a\n\n\n</parameter>\n</function>\n</tool_call>"},
       R"(content '' reasoning '' call run{"cmd":"\n a\n\n"})"},
      {{"</think><tool_call>\n<function=run>\n<parameter=cmd>\n</parameter>\n</function>\n</tool_call>"},
       R"(content '' reasoning '' call run{"cmd":""})"},
      // Closing tags inside of a file's text.
      {{"</think><tool_call>\n<function=run>\n<parameter=cmd>\na</parameter>b\n</parameter>\n</"
        "function>\nc<parameter=x>\nd\n",
        "</parameter>\n</function>\n</tool_call>"},
       R"(content '' reasoning '' call run{"cmd":"a</parameter>b\n</parameter>\n</function>\nc<parameter=x>\nd"})"},
      // Two calls, the first without its closing tag; a repeated parameter; text after a call.
      {{"</think>",
        "<tool_call>\n<function=run>\n<parameter=cmd>\na\n</parameter>\n<parameter=cmd>\nb\n</parameter>\n</"
        "function>\n",
        "<function=get_time>\n</function>\n</tool_call>\ndone"},
       R"(content ')"
       "\n"
       R"(done' reasoning '' call run{"cmd":"a"} call get_time{})"},
      {{"</think>", "<function=run></function>", " ", "x", " </tool_call>"},
       "content 'x </tool_call>' reasoning '' call run{}"},
      // Another function's name, or a second parameter that breaks.
      {{"</think>", "<tool_call>\n<function=rm>\n</function>\n</tool_call>"},
       "content '<tool_call>\n<function=rm>\n</function>\n</tool_call>' reasoning ''"},
      {{"</think>", "<function=run><parameter=cmd>a</parameter><parameter=>b</parameter></function></tool_call>"},
       R"(content '<parameter=>b</parameter></function></tool_call>' reasoning '' call run{"cmd":"a"} cut)"},
      {{"</think>", "<tool_call>\n<function=write_file>\n<parameter=path>\n/tmp/", "x"},
       R"(content '' reasoning '' call write_file{"path":"/tmp/x"} cut)"},
  };
  out.pieces = {"</think>",
                "<tool_call>",
                "</tool_call>",
                "<function=run>",
                "<function=",
                "</function>",
                "<parameter=a>",
                "<parameter=cmd>",
                "</parameter>",
                "<parameter=n>",
                "\n",
                " ",
                "<para",
                "meter=",
                ">",
                "</",
                "tool_call>",
                "{",
                "1",
                "\"",
                "\\",
                "é"};
  return out;
}

FamilyCorpus llama_corpus() {
  FamilyCorpus out;
  out.family = {"llama3", {ToolFormat::kLlama3, ReasoningFormat::kNone}, {"<|python_tag|>"}};
  out.corpus = {
      {{"{\"name\": \"get", "_time\", \"parameters\": {\"tz\": \"U", "TC\"}}"},
       R"(content '' reasoning '' call get_time{"tz":"UTC"})"},
      {{"<|python_tag|>", " {\"type\": \"function\", \"name\": \"run\", \"parameters\": {\"cmd\": \"a\"}}; ",
        "{\"name\": \"run\", \"parameters\": {\"cmd\": \"b\"}}"},
       R"(content '' reasoning '' call run{"cmd":"a"} call run{"cmd":"b"})"},
      {{"<|python_tag|>", "print(1)"}, "content 'print(1)' reasoning ''"},
      {{"{\"answer\": 42}"}, R"(content '{"answer": 42}' reasoning '')"},
      {{"{\"name\": \"Bob\", \"age\": 5}"}, R"(content '{"name": "Bob", "age": 5}' reasoning '')"},
      {{"See: {\"name\": \"run\", \"parameters\": {}}"},
       R"(content 'See: {"name": "run", "parameters": {}}' reasoning '')"},
      {{" \n"}, "content ' \n' reasoning ''"},
      {{"{\"name\": \"run\", \"parameters\": {}}", "\nThat is all;"},
       "content '\nThat is all;' reasoning '' call run{}"},
      {{"{\"name\": \"run\", \"parameters\": {\"cmd\": \"a"}, R"(content '' reasoning '' call run{"cmd":"a"} cut)"},
  };
  out.pieces = {"<|python_tag|>",
                "{\"name\": \"run\", \"parameters\": {",
                "\"name\": \"run\"",
                "{",
                "}",
                "}}",
                ", ",
                ";",
                "\"",
                ": ",
                "\"x\": \"",
                "\", \"y\": ",
                "\n",
                " ",
                "é"};
  return out;
}

FamilyCorpus mistral_corpus() {
  FamilyCorpus out;
  out.family = {"mistral",
                {ToolFormat::kMistral, ReasoningFormat::kMistral},
                {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"}};
  out.corpus = {
      {{"[TOOL_CALLS]", " [{\"name\": \"get", "_time\", \"arguments\": {\"tz\": \"UTC\"}, \"id\": \"abcDEF123\"}, ",
        "{\"name\": \"run\", \"arguments\": {}}]"},
       R"(content '' reasoning '' call get_time{"tz":"UTC"} call run{})"},
      {{"Wait. ", "[TOOL_CALLS]", "get_", "time", "[ARGS]", "{\"tz\": \"a[ARGS]", "b\"}", "[TOOL_CALLS]", "run",
        "[CALL_ID]", "abcDEF123", "[ARGS]", "{}"},
       R"(content 'Wait.' reasoning '' call get_time{"tz":"a[ARGS]b"} call run{})"},
      {{"[TOOL_CALLS]", "run{\"cmd\": \"x\"}"}, R"(content '' reasoning '' call run{"cmd":"x"})"},
      {{"[THINK]", "so\n", "[/THINK]", "Yes."}, "content 'Yes.' reasoning 'so'"},
      {{"[TOOL_CALLS]", "rm", "[ARGS]", "{}"}, "content 'rm{}' reasoning ''"},
      {{"[TOOL_CALLS] is a tag"}, "content '[TOOL_CALLS] is a tag' reasoning ''"},
      {{"[TOOL_CALLS]", "run", "[ARGS]", "{\"cmd\": \"a\", ", "[TOOL_CALLS]", "run", "[ARGS]", "{}"},
       R"(content ',' reasoning '' call run{"cmd":"a"} cut call run{})"},
      {{"[TOOL_CALLS]", "[{\"name\": \"run\", \"arguments\": {\"cmd\": \"a"},
       R"(content '' reasoning '' call run{"cmd":"a"} cut)"},
  };
  out.pieces = {"[TOOL_CALLS]",
                "[ARGS]",
                "[CALL_ID]",
                "[THINK]",
                "[/THINK]",
                "[",
                "]",
                "{\"name\": \"run\", \"arguments\": {",
                "{",
                "}",
                "}}",
                ", ",
                "\"",
                ": ",
                "\"x\": \"",
                "\", \"y\": ",
                "\n",
                " ",
                "run",
                "get_time",
                "é"};
  return out;
}

FamilyCorpus gemma_corpus() {
  FamilyCorpus out;
  out.family = {"gemma4",
                {ToolFormat::kGemma4, ReasoningFormat::kGemma4},
                {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"}};
  out.corpus = {
      {{"<|channel>", "thought\n", "hm\n", "<channel|>", "Yes."}, "content 'Yes.' reasoning 'hm'"},
      {{"<|channel>", "thought\n", "<channel|>", "Yes."}, "content 'Yes.' reasoning ''"},
      {{"Yes. ", "<|channel>", "tho", "ught\nmore", "<channel|>", "\nNo."}, "content 'Yes. No.' reasoning 'more'"},
      {{"<|tool_call>", "call:write", "_file{content:", "<|\"|>", "a {b}: \"c\",\n", "<|\"|>",
        ",flag:true,n:-3,options:{a:[1,", "<|\"|>", "x", "<|\"|>", ",{}],b:null}}", "<tool_call|>", "<|tool_call>",
        "call:run{cmd:", "<|\"|>", "<|\"|>", "}", "<tool_call|>"},
       R"(content '' reasoning '' call write_file{"content":"a {b}: \"c\",\n","flag":true,"n":-3,)"
       R"("options":{"a":[1,"x",{}],"b":null}} call run{"cmd":""})"},
      {{"Look. ", "<|tool_call>", "call:run{", "<|\"|>", "cmd", "<|\"|>",
        ": \"JSON \\\"quotes\\\"\" , bare: two words }", "<tool_call|>", "\n"},
       R"(content 'Look.' reasoning '' call run{"cmd":"JSON \"quotes\"","bare":"two words"})"},
      {{"<|tool_call>", "call:run{}", "<tool_call|>", "Done."}, "content 'Done.' reasoning '' call run{}"},
      {{"<|tool_call>", "call:rm{}", "<tool_call|>"}, "content 'call:rm{}' reasoning ''"},
      {{"<|tool_call>", "hello"}, "content 'hello' reasoning ''"},
      {{"<|tool_call>", "call:run{cmd:", "<|\"|>", "x", "<|\"|>", ",]}", "<tool_call|>"},
       R"(content ',]}' reasoning '' call run{"cmd":"x"} cut)"},
      {{"<|tool_call>", "call:run{cmd:", "<|\"|>", "x"}, R"(content '' reasoning '' call run{"cmd":"x"} cut)"},
  };
  out.pieces = {"<|channel>",
                "<channel|>",
                "thought\n",
                "<|tool_call>",
                "<tool_call|>",
                "<|\"|>",
                "call:run{",
                "call:get_time",
                "{",
                "}",
                "[",
                "]",
                ",",
                ":",
                "k:",
                "l:",
                "1",
                "\"",
                " ",
                "\n",
                "é"};
  return out;
}

FamilyCorpus harmony_corpus() {
  FamilyCorpus out;
  out.family = {"gpt_oss",
                {ToolFormat::kHarmony, ReasoningFormat::kHarmony},
                {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"}};
  const std::vector<std::string> thought = {"<|channel|>", "analysis", "<|message|>", "hm",
                                            "m",           "<|end|>",  "<|start|>",   "assistant"};
  const auto after_thought = [&](std::vector<std::string> more) {
    std::vector<std::string> tokens = thought;
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  };
  out.corpus = {
      {after_thought({"<|channel|>", "final", "<|message|>", "Yes", ".", "<|return|>"}),
       "content 'Yes.' reasoning 'hmm'"},
      {after_thought({"<|channel|>", "comment", "ary to=functions.get_time ", "<|constrain|>", "json", "<|message|>",
                      "{\"tz\":", "\"UTC\"}", "<|call|>"}),
       R"(content '' reasoning 'hmm' call get_time{"tz":"UTC"})"},
      // The recipient before the channel, on another channel, doubled, without its namespace, without a content type.
      {after_thought({" to=functions.run", "<|channel|>", "commentary json", "<|message|>", "{}", "<|call|>"}),
       "content '' reasoning 'hmm' call run{}"},
      {{"<|channel|>", "analysis to=functions.run code", "<|message|>", "{\"cmd\": \"x\"}", "<|call|>"},
       R"(content '' reasoning '' call run{"cmd":"x"})"},
      {{"<|channel|>", "commentary to=functions.get_time to=functions.get_time", "<|message|>", "{\"tz\":\"UTC\"}",
        "<|call|>"},
       R"(content '' reasoning '' call get_time{"tz":"UTC"})"},
      {{" to=run", "<|message|>", "<|call|>"}, "content '' reasoning '' call run{}"},
      // A preamble, then a call; two thoughts.
      {{"<|channel|>", "commentary", "<|message|>", "I look.", "<|end|>", "<|start|>", "assistant", "<|channel|>",
        "final", "<|message|>", "Yes."},
       "content 'I look.\n\nYes.' reasoning ''"},
      {after_thought({"<|channel|>", "analysis", "<|message|>", "again"}), "content '' reasoning 'hmm\n\nagain'"},
      // No channel, no end, no header, a channel nobody knows, a turn of the user.
      {{"<|message|>", "Yes."}, "content 'Yes.' reasoning ''"},
      {{"<|channel|>", "analysis", "<|message|>", "hm", "<|channel|>", "final", "<|message|>", "Yes."},
       "content 'Yes.' reasoning 'hm'"},
      {{"Yes", ", of course", "<|end|>"}, "content 'Yes, of course' reasoning ''"},
      {{"<|channel|>", "analysys", "<|message|>", "hm"}, "content 'analysyshm' reasoning ''"},
      {{"<|start|>", "user", "<|message|>", "hi"}, "content 'userhi' reasoning ''"},
      {{"<|channel|>", "anal"}, "content '' reasoning ''"},
      // To two functions; text after the arguments.
      {{"<|channel|>", "commentary to=functions.run to=functions.get_time", "<|message|>", "{}", "<|call|>"},
       "content 'commentary to=functions.run to=functions.get_time{}' reasoning ''"},
      {{"<|channel|>", "commentary to=functions.run", "<|message|>", "{}", " ", "x", " y", "<|call|>"},
       "content 'x y' reasoning '' call run{}"},
      // To a function that is not offered; arguments that are no object, or break.
      {{"<|channel|>", "commentary to=functions.rm ", "<|constrain|>", "json", "<|message|>", "{}", "<|call|>"},
       "content 'commentary to=functions.rm  json{}' reasoning ''"},
      {{"<|channel|>", "commentary to=functions.run", "<|message|>", "print(1)", "<|call|>"},
       "content 'print(1)' reasoning ''"},
      {{"<|channel|>", "commentary to=functions.run", "<|message|>", "{\"cmd\": \"a\", oops}", "<|call|>"},
       R"(content ', oops}' reasoning '' call run{"cmd":"a"} cut)"},
      {{"<|channel|>", "commentary to=functions.run", "<|message|>", "{\"cmd\": \"a"},
       R"(content '' reasoning '' call run{"cmd":"a"} cut)"},
      {{"<|channel|>", "commentary to=functions.run", "<|message|>", "{\"cmd\": \"a\"}", "<|end|>", "<|start|>",
        "assistant", "<|channel|>", "commentary to=functions.run", "<|message|>", "{\"cmd\": \"b\"}", "<|call|>"},
       R"(content '' reasoning '' call run{"cmd":"a"} call run{"cmd":"b"})"},
  };
  out.pieces = {"<|start|>",
                "<|end|>",
                "<|message|>",
                "<|channel|>",
                "<|constrain|>",
                "<|call|>",
                "<|return|>",
                "assistant",
                "analysis",
                "final",
                "commentary",
                " to=functions.run",
                " to=functions.",
                " json",
                "{\"a\": \"",
                "\"}",
                "{",
                "}",
                " ",
                "\n",
                "é"};
  return out;
}

}  // namespace tailrace::test
