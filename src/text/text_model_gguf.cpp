#include "text/text_model_gguf.h"

#include <algorithm>
#include <array>
#include <set>

#include "weights/gguf.h"

namespace tailrace {

namespace {

// Ends of a turn that converters often leave out of the metadata: counted where the vocabulary has them as control tokens.
constexpr std::array<const char*, 9> kTurnEnds = {"<|im_end|>", "<|eot_id|>",     "<|eom_id|>",
                                                  "<end_of_turn>", "<turn|>",     "<|tool_response>",
                                                  "<|return|>",  "<|call|>",       "<|endoftext|>"};

Expected<std::optional<TokenId>> optional_id(const GgufFile& file, const std::string& key, size_t vocab) {
  if (!file.has(key)) return std::optional<TokenId>();
  const Expected<int64_t> id = file.get_i64(key);
  if (!id) return fail(id.error());
  if (*id < 0 || *id == 0xFFFFFFFF) return std::optional<TokenId>();  // converters write -1 for "none"
  if (static_cast<uint64_t>(*id) >= vocab) {
    return fail(StatusCode::kDataLoss,
                file.name() + ": " + key + " is " + std::to_string(*id) + ", outside the vocabulary of " + std::to_string(vocab));
  }
  return std::optional<TokenId>(static_cast<TokenId>(*id));
}

Status read_arrays(const GgufFile& file, GgufTokenizer* spec) {
  Expected<std::vector<std::string>> tokens = file.get_strings("tokenizer.ggml.tokens");
  if (!tokens) return tokens.error();
  spec->tokens = std::move(*tokens);
  if (file.has("tokenizer.ggml.scores")) {
    Expected<std::vector<float>> scores = file.get_floats("tokenizer.ggml.scores");
    if (!scores) return scores.error();
    spec->scores = std::move(*scores);
  }
  if (file.has("tokenizer.ggml.token_type")) {
    Expected<std::vector<int64_t>> types = file.get_ints("tokenizer.ggml.token_type");
    if (!types) return types.error();
    spec->types.assign(types->begin(), types->end());
  }
  if (file.has("tokenizer.ggml.merges")) {
    Expected<std::vector<std::string>> merges = file.get_strings("tokenizer.ggml.merges");
    if (!merges) return merges.error();
    spec->merges = std::move(*merges);
  }
  return Status();
}

Expected<GgufTokenizer> read_spec(const GgufFile& file) {
  GgufTokenizer spec;
  Expected<std::string> model = file.get_string("tokenizer.ggml.model");
  if (!model) return fail(model.error());
  spec.model = std::move(*model);
  Expected<std::string> pre = file.get_string_or("tokenizer.ggml.pre", "");
  if (!pre) return fail(pre.error());
  spec.pre = std::move(*pre);
  if (Status status = read_arrays(file, &spec); !status.ok()) return fail(status);
  const struct {
    const char* key;
    std::optional<TokenId>* out;
  } ids[] = {{"tokenizer.ggml.bos_token_id", &spec.bos},
             {"tokenizer.ggml.eos_token_id", &spec.eos},
             {"tokenizer.ggml.unknown_token_id", &spec.unk}};
  for (const auto& entry : ids) {
    Expected<std::optional<TokenId>> id = optional_id(file, entry.key, spec.tokens.size());
    if (!id) return fail(id.error());
    *entry.out = *id;
  }
  // Where the file does not say: SentencePiece models add BOS, and of the byte-level ones those of the Llama 3 family.
  const bool bos_by_default = spec.model == "llama" || spec.pre == "llama-bpe" || spec.pre == "llama3";
  const struct {
    const char* key;
    bool fallback;
    bool* out;
  } flags[] = {{"tokenizer.ggml.add_bos_token", bos_by_default && spec.bos.has_value(), &spec.add_bos},
               {"tokenizer.ggml.add_eos_token", false, &spec.add_eos},
               {"tokenizer.ggml.add_space_prefix", true, &spec.add_space_prefix}};
  for (const auto& entry : flags) {
    const Expected<bool> value = file.get_bool_or(entry.key, entry.fallback);
    if (!value) return fail(value.error());
    *entry.out = *value;
  }
  return spec;
}

Expected<std::vector<TokenId>> end_ids(const GgufFile& file, const GgufTokenizer& spec, const Tokenizer& tokenizer) {
  std::set<TokenId> ids;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const Expected<std::optional<TokenId>> id = optional_id(file, key, spec.tokens.size());
    if (!id) return fail(id.error());
    if (*id) ids.insert(**id);
  }
  for (const char* text : kTurnEnds) {
    const std::optional<TokenId> id = tokenizer.token_to_id(text);
    if (id && tokenizer.is_special(*id)) ids.insert(*id);
  }
  return std::vector<TokenId>(ids.begin(), ids.end());
}

}  // namespace

Expected<std::shared_ptr<const TextModel>> load_text_model_gguf(const std::string& path) {
  Expected<std::shared_ptr<GgufFile>> file = GgufFile::open(path);
  if (!file) return fail(file.error());
  const GgufFile& gguf = **file;
  Expected<GgufTokenizer> spec = read_spec(gguf);
  if (!spec) return fail(spec.error());
  Expected<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::from_gguf(*spec);
  if (!tokenizer) return fail(Status(tokenizer.error().code(), path + ": " + tokenizer.error().message()));
  Expected<std::vector<TokenId>> eos = end_ids(gguf, *spec, **tokenizer);
  if (!eos) return fail(eos.error());

  TextModel model;
  model.tokenizer = *tokenizer;
  model.eos_ids = std::move(*eos);
  model.bos_id = spec->bos;
  model.add_bos = spec->add_bos;
  ChatTemplateOptions options;
  if (spec->bos) options.bos_token = spec->tokens[static_cast<size_t>(*spec->bos)];
  if (spec->eos) options.eos_token = spec->tokens[static_cast<size_t>(*spec->eos)];
  std::optional<std::string> source;
  if (gguf.has("tokenizer.chat_template")) {
    Expected<std::string> text = gguf.get_string("tokenizer.chat_template");
    if (!text) return fail(text.error());
    source = std::move(*text);
  }
  if (Status status = set_chat_template(source, options, path, &model); !status.ok()) return fail(status);
  return std::make_shared<const TextModel>(std::move(model));
}

}  // namespace tailrace
