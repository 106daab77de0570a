// The text side of a scripted model: one byte is one token, and some tokens form scripts, as in the public cases'
// checkpoint: the user message NAME makes the model say script NAME, token by token, then <|im_end|>.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/request.h"
#include "text/text_model.h"

namespace tailrace::test {

struct ScriptedText {
  std::shared_ptr<TextModel> text;
  std::map<TokenId, TokenId> successor;  // of any other token: eos
  TokenId eos = -1;
  int32_t vocab_size = 0;

  TokenId next(TokenId token) const {
    const auto it = successor.find(token);
    return it == successor.end() ? eos : it->second;
  }
};

// Name and steps of each script. Every step is a token of its own, and no step may come twice in one list; steps that
// are control tokens or tags of some family ("<|call|>", "<tool_call>") are added tokens, special where they begin
// with "<|".
using Scripts = std::vector<std::pair<std::string, std::vector<std::string>>>;

// utf8, emoji, abc, long (20 tokens), loop (its token follows itself for ever).
Scripts basic_scripts();
// The public cases' scripts for parsers: think, qxml, qbad, harm.
Scripts parser_scripts();

ScriptedText make_scripted_text(const Scripts& scripts = basic_scripts());

}  // namespace tailrace::test
