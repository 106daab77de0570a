#include "http/scripted_text.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tailrace::test {
namespace {

using Json = nlohmann::ordered_json;

// GPT-2's printable stand-ins for bytes, as UTF-8.
std::array<std::string, 256> byte_symbols() {
  std::array<std::string, 256> out;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = printable ? byte : next++;
    if (code < 128) {
      out[byte] = static_cast<char>(code);
    } else {
      out[byte] = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
    }
  }
  return out;
}

bool is_tag(const std::string& step) {
  constexpr std::string_view kTags[] = {"<think>",     "</think>",    "<tool_call>",   "</tool_call>",
                                        "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>",
                                        "<|end|>",     "<|start|>",   "<|return|>"};
  return std::find(std::begin(kTags), std::end(kTags), step) != std::end(kTags);
}

}  // namespace

Scripts basic_scripts() {
  std::vector<std::string> words;
  for (int i = 0; i < 20; ++i) words.push_back("w" + std::to_string(i / 10) + std::to_string(i % 10) + " ");
  return {{"utf8", {"A ", "\xe4\xb8\x96\xc3", "\xa9\xf0", "\x9f\x98\x80" "b"}},
          {"emoji", {" ok ", "\xf0\x9f", "\x8e", "\x89", "!!"}},
          {"abc", {"DEF", "GG", "HI", "JJ", "KK"}},
          {"long", words},
          {"loop", {"again "}}};
}

Scripts parser_scripts() {
  return {
      {"think", {"I restate: ", "Quest", "ion: how many?", " Done.", "</think>", "\n\nAnswer", " 42"}},
      {"qxml",
       {"<tool_call>", "\n<function=write", "_file>\n<parameter=pa", "th>\n/tmp/a", ".txt\n</param",
        "eter>\n<parameter=content>\nline1\n", "</tool_", "call> is text", "\n</parameter>\n<parameter=n>\n",
        "3\n</parameter>\n</func", "tion>\n", "</tool_call>"}},
      {"qbad",
       {"<tool_", "call>\n<function=run>\n<parameter=", "\necho hi", "\n</parameter>\n</function>\n</tool", "_call>"}},
      {"harm",
       {"<|channel|>", "commentary to=functions.get_time to=functions.get_time", "<|message|>", "{\"tz\":\"UTC\"}",
        "<|call|>"}}};
}

ScriptedText make_scripted_text(const Scripts& scripts) {
  const auto symbols = byte_symbols();
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[symbols[byte]] = byte;
  TokenId next_id = 256;
  const auto token_of = [&](const std::string& bytes) {
    std::string key;
    for (const unsigned char byte : bytes) key += symbols[byte];
    if (!vocab.contains(key)) vocab[key] = next_id++;
    return vocab[key].get<TokenId>();
  };
  Json added = Json::array();
  std::map<std::string, TokenId> added_ids;
  const auto add_token = [&](const std::string& content) {
    added.push_back({{"id", next_id}, {"content", content}, {"single_word", false}, {"lstrip", false},
                     {"rstrip", false}, {"normalized", false}, {"special", content.rfind("<|", 0) == 0}});
    return added_ids[content] = next_id++;
  };
  ScriptedText out;
  for (const auto& [name, texts] : scripts) {
    for (const auto& text : texts) {
      if (!is_tag(text)) token_of(text);
    }
  }
  std::map<std::string, std::vector<TokenId>> steps;
  for (const auto& [name, texts] : scripts) {
    for (const auto& text : texts) {
      const bool new_tag = is_tag(text) && added_ids.count(text) == 0;
      steps[name].push_back(!is_tag(text) ? token_of(text) : new_tag ? add_token(text) : added_ids[text]);
    }
  }
  add_token("<|im_start|>");
  out.eos = add_token("<|im_end|>");
  std::string source =  // note: a variable
      "{%- if note %}{%- endif %}{%- for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
      "{%- for m in messages %}{%- for call in m.tool_calls or [] %}{{ call.function.name }} {% endfor %}{%- endfor %}"
      "{%- set c = messages[-1].content %}";
  for (const auto& [name, ids] : steps) {
    TokenId current = add_token("<|s:" + name + "|>");
    for (const TokenId id : ids) {
      CHECK_MSG(out.successor.emplace(current, id).second, "a step of the scripts comes twice");
      current = id;
    }
    CHECK_MSG(out.successor.count(current) == 0, "the last step of a script comes twice");
    out.successor[current] = out.eos;
    if (name == "loop") out.successor[current] = current;
    source += "{%- if c == '" + name + "' %}<|s:" + name + "|>{%- set c = '' %}{%- endif %}";
  }
  source += "{{ c }}";
  const Json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  const Json tokenizer = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added},
                          {"normalizer", nullptr}, {"pre_tokenizer", level}, {"post_processor", nullptr},
                          {"decoder", level},
                          {"model", {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr},
                                     {"continuing_subword_prefix", nullptr}, {"end_of_word_suffix", nullptr},
                                     {"fuse_unk", false}, {"byte_fallback", false}, {"ignore_merges", false},
                                     {"vocab", vocab}, {"merges", Json::array()}}}};
  out.text = std::make_shared<TextModel>();
  auto built = Tokenizer::from_json(tokenizer.dump());
  CHECK_MSG(built.has_value(), "the scripted tokenizer does not load");
  out.text->tokenizer = *built;
  auto compiled = ChatTemplate::compile(source, {});
  CHECK_MSG(compiled.has_value(), "the scripted template does not compile");
  out.text->chat_template = *compiled;
  out.text->eos_ids = {out.eos};
  out.vocab_size = next_id;
  return out;
}

}  // namespace tailrace::test
