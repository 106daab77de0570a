#include "text/tokenizer.h"

#include "text/detokenizer.h"
#include "text/textkit_call.h"

namespace tailrace {

namespace {

std::vector<tk_str> views(const std::vector<std::string>& texts) {
  std::vector<tk_str> result;
  result.reserve(texts.size());
  for (const std::string& text : texts) result.push_back(to_tk(text));
  return result;
}

}  // namespace

Tokenizer::Tokenizer(tk_tokenizer* handle) : handle_(handle) {
  tk_pieces pieces;
  tk_tokenizer_pieces(handle, &pieces);
  vocab_size_ = pieces.size;
  token_blob_ = pieces.blob;
  token_start_ = pieces.start;
  token_special_ = pieces.special;
  decode_rule_.strip.assign(pieces.strip.data, pieces.strip.len);
  decode_rule_.strip_count = pieces.strip_count;
  decode_rule_.first_drops_meta = pieces.first_drops_meta != 0;
  decode_rule_.join.assign(pieces.join.data, pieces.join.len);
}

Tokenizer::~Tokenizer() {
  const TextkitCall call;
  tk_tokenizer_free(handle_);
}

Expected<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json) {
  tk_tokenizer* handle = nullptr;
  tk_string error{};
  const tk_status status = tk_tokenizer_from_json(to_tk(tokenizer_json), &handle, &error);
  if (status != TK_OK) return fail(to_status(status, error));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(handle));
}

Expected<std::shared_ptr<const Tokenizer>> Tokenizer::from_gguf(const GgufTokenizer& spec) {
  const size_t n = spec.tokens.size();
  if (!spec.scores.empty() && spec.scores.size() != n) {
    return fail(StatusCode::kDataLoss, "tokenizer.ggml.scores has " + std::to_string(spec.scores.size()) +
                                           " entries for " + std::to_string(n) + " tokens");
  }
  if (!spec.types.empty() && spec.types.size() != n) {
    return fail(StatusCode::kDataLoss, "tokenizer.ggml.token_type has " + std::to_string(spec.types.size()) +
                                           " entries for " + std::to_string(n) + " tokens");
  }
  const std::vector<tk_str> tokens = views(spec.tokens);
  const std::vector<tk_str> merges = views(spec.merges);
  tk_gguf_spec c{};
  c.model = to_tk(spec.model);
  c.pre = to_tk(spec.pre);
  c.tokens = tokens.data();
  c.num_tokens = n;
  c.scores = spec.scores.empty() ? nullptr : spec.scores.data();
  c.types = spec.types.empty() ? nullptr : spec.types.data();
  c.merges = merges.data();
  c.num_merges = merges.size();
  c.bos = spec.bos.value_or(-1);
  c.eos = spec.eos.value_or(-1);
  c.unk = spec.unk.value_or(-1);
  c.add_bos = spec.add_bos;
  c.add_eos = spec.add_eos;
  c.add_space_prefix = spec.add_space_prefix;
  tk_tokenizer* handle = nullptr;
  tk_string error{};
  const tk_status status = tk_tokenizer_from_gguf(&c, &handle, &error);
  if (status != TK_OK) return fail(to_status(status, error));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(handle));
}

Expected<std::vector<TokenId>> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                                 bool parse_special) const {
  tk_ids ids{};
  tk_string error{};
  const TextkitCall call;
  const tk_status status = tk_encode(handle_, to_tk(text), add_special_tokens, parse_special, &ids, &error);
  if (status != TK_OK) return fail(to_status(status, error));
  return take(ids);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  DecodeState state(*this, skip_special, TextPosition::kBegin);
  std::string text;
  for (const TokenId id : ids) state.push(id, &text);
  state.finish(&text);
  return text;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size_) return {};
  return {token_blob_ + token_start_[id], token_start_[id + 1] - token_start_[id]};
}

std::string Tokenizer::id_to_token(TokenId id) const { return take(tk_id_to_token(handle_, id)); }

std::string Tokenizer::first_token_bytes(TokenId id) const { return take(tk_first_token_bytes(handle_, id)); }

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  const int32_t id = tk_token_to_id(handle_, to_tk(token));
  if (id < 0) return std::nullopt;
  return id;
}

bool Tokenizer::is_special(TokenId id) const { return id >= 0 && id < vocab_size_ && token_special_[id] != 0; }

}  // namespace tailrace
