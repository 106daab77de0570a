#include "text/grammar.h"

#include <utility>

#include "text/textkit_call.h"

namespace tailrace {
namespace {

class GrammarRun : public ConstraintRun {
 public:
  explicit GrammarRun(tk_run* handle) : handle_(handle) {}
  ~GrammarRun() override {
    const TextkitCall call;
    tk_run_free(handle_);
  }
  Status next(std::span<const int32_t> tokens, std::span<uint32_t> mask) override {
    const TextkitCall call;
    tk_string error{};
    return to_status(tk_run_next(handle_, tokens.data(), tokens.size(), mask.data(), mask.size(), &error), error);
  }

 private:
  tk_run* const handle_;
};

class CompiledGrammar : public TokenConstraint {
 public:
  explicit CompiledGrammar(tk_grammar* handle) : handle_(handle) {}
  ~CompiledGrammar() override {
    const TextkitCall call;
    tk_grammar_free(handle_);
  }
  Expected<std::unique_ptr<ConstraintRun>> start() const override {
    const TextkitCall call;
    tk_run* run = nullptr;
    tk_string error{};
    const tk_status status = tk_grammar_start(handle_, &run, &error);
    if (status != TK_OK) return fail(to_status(status, error));
    return std::make_unique<GrammarRun>(run);
  }

 private:
  tk_grammar* const handle_;
};

tk_grammar_kind to_tk(GrammarKind kind) {
  return kind == GrammarKind::kLark ? TK_LARK : kind == GrammarKind::kRegex ? TK_REGEX : TK_JSON_SCHEMA;
}

}  // namespace

Grammars::~Grammars() {
  const TextkitCall call;
  tk_grammars_free(handle_);
}

Expected<std::unique_ptr<const Grammars>> Grammars::create(std::shared_ptr<const Tokenizer> tokenizer,
                                                           std::span<const TokenId> eos_ids,
                                                           std::span<const TokenId> control_ids) {
  const TextkitCall call;
  tk_grammars* handle = nullptr;
  tk_string error{};
  const tk_status status = tk_grammars_new(tokenizer->handle(), eos_ids.data(), eos_ids.size(), control_ids.data(),
                                           control_ids.size(), &handle, &error);
  if (status != TK_OK) return fail(to_status(status, error));
  return std::unique_ptr<const Grammars>(new Grammars(std::move(tokenizer), handle));
}

Expected<std::shared_ptr<const TokenConstraint>> Grammars::compile(const GrammarSource& source,
                                                                   bool keep) const {
  const TextkitCall call;
  tk_grammar* handle = nullptr;
  tk_string error{};
  const tk_status status = tk_grammar_compile(handle_, tailrace::to_tk(source.outer), to_tk(source.kind),
                                              tailrace::to_tk(source.body), keep ? 1 : 0, &handle, &error);
  if (status != TK_OK) return fail(to_status(status, error));
  return std::make_shared<const CompiledGrammar>(handle);
}

std::string lark_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr const char* kHex = "0123456789abcdef";
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace tailrace
