// A bound on an answer's reasoning, as a constraint: when it is used up, the answer has to go on
// with what ends reasoning.
#pragma once

#include <cstdint>
#include <memory>

#include "base/token_constraint.h"
#include "server/served_model.h"

namespace tailrace {

// `tokens` of reasoning and its markers at most, and then those that end it; the count goes on
// where the model begins to reason again. `inner` is kept as well (null: anything may be said).
// kUnsupported where the model's reasoning has no end that its tokenizer can write.
Expected<std::shared_ptr<const TokenConstraint>> bound_thinking(
    const ServedModel& model, ThinkStart start, int32_t tokens,
    std::shared_ptr<const TokenConstraint> inner);

}  // namespace tailrace
