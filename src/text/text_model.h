// What a checkpoint says about text: tokenizer, chat template, special ids and sampling defaults.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tailrace {

// From generation_config.json; absent fields keep the server's own defaults.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k;
  std::optional<int32_t> max_new_tokens;
  std::vector<TokenId> suppress_tokens;  // never sampled
};

struct TextModel {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: chat requests are refused with no_template_reason
  std::string no_template_reason;   // where there is none
  std::vector<TokenId> eos_ids;     // ascending: union of what config, generation_config and tokenizer name
  std::optional<TokenId> bos_id;
  bool add_bos = false;             // a plain encode with add_special_tokens starts with bos_id
  SamplingDefaults sampling;

  // `path`: a Hugging Face directory or a GGUF file (or a directory that holds exactly one). kNotFound, kDataLoss or
  // kUnsupported with the file's name: also for a chat template that does not compile, which would fail every chat.
  static Expected<std::shared_ptr<const TextModel>> load(const std::string& path);

  // Renders one short user message: why it fails, to be told at start-up and not by the first client. Ok without a template.
  Status try_chat() const;
};

}  // namespace tailrace
