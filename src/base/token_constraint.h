// TokenConstraint: which tokens an answer may go on with. The engine asks; only its maker knows the rule, a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace tailrace {

// 32-bit words of a mask over `vocab` tokens: bit i % 32 of word i / 32 is set where token i may come next.
constexpr int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }

// The rule's state along one answer; used by one thread at a time.
class ConstraintRun {
 public:
  virtual ~ConstraintRun() = default;
  // The answer went on by `tokens`; writes which may come next. Tokens that end an answer are among them where the rule
  // is met, and alone where nothing else may follow: at least one token always is. An error ends the answer.
  virtual Status next(std::span<const int32_t> tokens, std::span<uint32_t> mask) = 0;
};

// Immutable, any thread; the choices of a request share one.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  virtual Expected<std::unique_ptr<ConstraintRun>> start() const = 0;
};

}  // namespace tailrace
