// Small GGUF tokenizers built in code: every byte is a token, and a few control tokens.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace tailrace {

// GPT-2's letter for a byte.
inline std::string byte_letter(int byte) {
  int code = byte;
  if (byte <= 0x20) code = 0x100 + byte;
  if (byte >= 0x7F && byte <= 0xA0) code = 0x121 + byte - 0x7F;
  if (byte == 0xAD) code = 0x143;
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// Ids 0..255 are the bytes, 256 <|im_start|>, 257 <|im_end|> (control), 258 <think> (user-defined).
inline GgufTokenizer small_byte_level() {
  GgufTokenizer spec;
  spec.model = "gpt2";
  spec.pre = "qwen2";
  for (int byte = 0; byte < 256; ++byte) spec.tokens.push_back(byte_letter(byte));
  spec.types.assign(256, 1);
  for (const char* token : {"<|im_start|>", "<|im_end|>", "<think>"}) spec.tokens.push_back(token);
  spec.types.insert(spec.types.end(), {3, 3, 4});
  return spec;
}

// <unk> <s> </s>, 256 byte tokens, then `pieces` with their scores.
inline GgufTokenizer sentence_piece_of(const std::vector<std::pair<std::string, float>>& pieces) {
  GgufTokenizer spec;
  spec.model = "llama";
  spec.tokens = {"<unk>", "<s>", "</s>"};
  spec.types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    spec.tokens.push_back(name);
    spec.types.push_back(6);
  }
  spec.scores.assign(spec.tokens.size(), 0.0f);
  for (const auto& [text, score] : pieces) {
    spec.tokens.push_back(text);
    spec.types.push_back(1);
    spec.scores.push_back(score);
  }
  spec.unk = 0, spec.bos = 1, spec.eos = 2;
  return spec;
}

// Strips the first space of a text.
inline GgufTokenizer small_sentence_piece() {
  return sentence_piece_of({{"\u2581", -1}, {"h", -2}, {"i", -3}, {"\u2581h", -4}, {"\u2581hi", -5}, {"é", -6},
                            {"世", -7}, {"\u2581\u2581", -8}});
}

}  // namespace tailrace
