// Grammars: compiles what an answer must look like (JSON schema, regex, Lark, GBNF) over one tokenizer's vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/request.h"
#include "base/status.h"
#include "base/token_constraint.h"
#include "text/tokenizer.h"

struct tk_grammars;  // rust/textkit/textkit.h

namespace tailrace {

enum class GrammarKind { kLark, kJsonSchema, kRegex };  // kLark: or GBNF, which shows in its first rule

// What the whole answer is, in Lark's syntax, and a part of it in a language of its own.
struct GrammarSource {
  std::string outer;  // calls the body as @body; empty: the body is the whole answer
  GrammarKind kind = GrammarKind::kLark;
  std::string body;   // empty where `outer` does without
};

// Thread-safe. Compiles on a thread of its own, bounded in time, nesting and size.
class Grammars {
 public:
  // `eos_ids`: tokens that end an answer, at least one. `control_ids`: tokens that grammars name by id alone, as they
  // do special ones: the same characters in text are text. kUnsupported without an end token.
  static Expected<std::unique_ptr<const Grammars>> create(std::shared_ptr<const Tokenizer> tokenizer,
                                                          std::span<const TokenId> eos_ids,
                                                          std::span<const TokenId> control_ids);
  ~Grammars();
  Grammars(const Grammars&) = delete;

  // kInvalidArgument, kUnsupported or kTooLarge say what is wrong with the source; kResourceExhausted: try again.
  // `keep`: among the last few, which cost nothing when they are asked for again.
  Expected<std::shared_ptr<const TokenConstraint>> compile(const GrammarSource& source, bool keep = true) const;

 private:
  Grammars(std::shared_ptr<const Tokenizer> tokenizer, tk_grammars* handle)
      : tokenizer_(std::move(tokenizer)), handle_(handle) {}

  const std::shared_ptr<const Tokenizer> tokenizer_;
  tk_grammars* const handle_;
};

// `text` as a literal of Lark's syntax.
std::string lark_quoted(std::string_view text);

}  // namespace tailrace
