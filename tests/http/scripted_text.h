// The text side of a scripted model: one byte is one token, and some tokens form scripts, as in the public cases'
// checkpoint: the user message NAME makes the model say script NAME, token by token, then <|im_end|>.
#pragma once

#include <map>
#include <memory>
#include <string>

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

// Scripts: utf8, emoji, abc, long (20 tokens), loop (its token follows itself for ever).
ScriptedText make_scripted_text();

}  // namespace tailrace::test
