// Text to token ids and back: one immutable tokenizer, read from tokenizer.json or from a GGUF file's metadata.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/request.h"
#include "base/status.h"

struct tk_tokenizer;  // rust/textkit/textkit.h

namespace tailrace {

// What a GGUF file's metadata says under tokenizer.ggml.*; arrays are indexed by token id.
struct GgufTokenizer {
  std::string model;                // gpt2 (byte-level BPE) or llama (SentencePiece)
  std::string pre;                  // names the split regex of gpt2; an unknown name is an error
  std::vector<std::string> tokens;
  std::vector<float> scores;        // llama only; empty or one per token
  std::vector<int32_t> types;       // 1 normal 2 unknown 3 control 4 user-defined 5 unused 6 byte; empty: all normal
  std::vector<std::string> merges;  // gpt2 only: "left right", best first
  std::optional<TokenId> bos, eos, unk;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = true;     // llama only
};

// Thread-safe: every method may be called from several threads at once.
class Tokenizer {
 public:
  // kDataLoss when the text is not a tokenizer.json; kUnsupported, naming it, when a component is not understood.
  // Truncation and padding settings of the file are dropped: a server never cuts a prompt by itself.
  static Expected<std::shared_ptr<const Tokenizer>> from_json(std::string_view tokenizer_json);
  // kUnsupported on an unknown `model` or `pre`, kDataLoss on arrays that do not fit together.
  static Expected<std::shared_ptr<const Tokenizer>> from_gguf(const GgufTokenizer& spec);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // add_special_tokens: the post-processor's BOS/EOS. parse_special: control tokens' text becomes their ids; without it
  // that text is plain text. Added tokens that are not special ("<think>") always become their ids, as in the reference.
  // kInvalidArgument when the text is not UTF-8.
  Expected<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens, bool parse_special) const;

  // All of `ids` at once; equals the joined output of a Detokenizer at a text's begin. Never fails: bytes that are not
  // UTF-8 become U+FFFD, one per maximal subpart; ids outside the vocabulary give no text.
  std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  // The token's own bytes, which need not be UTF-8 (OpenAI's logprobs[].bytes). Empty for an id outside the vocabulary.
  std::string_view token_bytes(TokenId id) const;
  // The token as the vocabulary spells it ("Ġhello", "▁hi", "<0x0A>"); empty for an id outside the vocabulary.
  std::string id_to_token(TokenId id) const;
  std::optional<TokenId> token_to_id(std::string_view token) const;
  // Special in the file's own words: left out of text when skip_special.
  bool is_special(TokenId id) const;
  // One more than the largest id; the model may have more rows than that.
  int32_t vocab_size() const { return vocab_size_; }

  // How the file's decoder treats the begin of a text; used by Detokenizer.
  struct DecodeRule {
    std::string strip;             // dropped from the begin of the text, at most strip_count times
    int32_t strip_count = 0;
    bool first_drops_meta = false; // Metaspace: the first token loses all its U+2581
    std::string join;              // between tokens (a file with no decoder joins by a space)
  };
  const DecodeRule& decode_rule() const { return decode_rule_; }
  // Where first_drops_meta is set: the bytes of a token that opens a text.
  std::string first_token_bytes(TokenId id) const;
  const tk_tokenizer* handle() const { return handle_; }

 private:
  explicit Tokenizer(tk_tokenizer* handle);

  tk_tokenizer* handle_;
  int32_t vocab_size_ = 0;
  DecodeRule decode_rule_;
  const char* token_blob_ = nullptr;        // owned by handle_: all tokens' bytes
  const uint32_t* token_start_ = nullptr;   // [vocab_size + 1] offsets into token_blob_
  const uint8_t* token_special_ = nullptr;  // [vocab_size]
};

}  // namespace tailrace
