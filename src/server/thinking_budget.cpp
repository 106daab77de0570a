#include "server/thinking_budget.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "text/detokenizer.h"

namespace tailrace {
namespace {

struct Rules {
  int32_t budget = 0;
  std::vector<TokenId> ending;    // what ends reasoning
  std::optional<TokenId> banned;  // would begin it again right behind
  OutputFormat format;
  ThinkStart start = ThinkStart::kOutside;
  std::shared_ptr<const Tokenizer> tokenizer;
  int32_t vocab_size = 0;
  std::shared_ptr<const TokenConstraint> inner;
};

bool allows(std::span<const uint32_t> mask, TokenId id) {
  return (mask[id / 32] >> (id % 32) & 1) != 0;
}

class BoundedRun : public ConstraintRun {
 public:
  BoundedRun(std::shared_ptr<const Rules> rules, std::unique_ptr<ConstraintRun> inner)
      : rules_(std::move(rules)),
        inner_(std::move(inner)),
        parser_(make_output_parser(rules_->format, rules_->start, nullptr, *rules_->tokenizer)),
        detokenizer_(rules_->tokenizer, /*skip_special=*/true) {}

  Status next(std::span<const int32_t> tokens, std::span<uint32_t> mask) override {
    for (const TokenId token : tokens) take(token);
    if (inner_) {
      if (Status status = inner_->next(tokens, mask); !status.ok()) return status;
    } else {
      allow_all(mask);
    }
    if (ending_at_ < rules_->ending.size()) {
      // A form that lets reasoning end nowhere here has the last word.
      const TokenId id = rules_->ending[ending_at_];
      if (!allows(mask, id)) return Status();
      std::fill(mask.begin(), mask.end(), 0);
      mask[id / 32] |= 1u << (id % 32);
    } else if (just_ended_ && rules_->banned) {
      mask[*rules_->banned / 32] &= ~(1u << (*rules_->banned % 32));
    }
    return Status();
  }

 private:
  void allow_all(std::span<uint32_t> mask) const {
    std::fill(mask.begin(), mask.end(), 0);
    for (TokenId id = 0; id < rules_->vocab_size; ++id) mask[id / 32] |= 1u << (id % 32);
  }

  void take(TokenId token) {
    just_ended_ = false;
    if (ending_at_ < rules_->ending.size() && token == rules_->ending[ending_at_]) {
      just_ended_ = ++ending_at_ == rules_->ending.size();
    }
    const bool before = reasons();
    if (parser_->is_control(token)) {
      parser_->text(detokenizer_.flush(), found_);
      parser_->control(token, found_);
    } else {
      parser_->text(detokenizer_.push(token), found_);
    }
    found_.take();
    used_ += before || reasons() ? 1 : 0;
    if (used_ >= rules_->budget && reasons() && ending_at_ == rules_->ending.size()) ending_at_ = 0;
  }

  bool reasons() const { return parser_->part() == OutputPart::kReasoning; }

  const std::shared_ptr<const Rules> rules_;
  const std::unique_ptr<ConstraintRun> inner_;
  const std::unique_ptr<OutputParser> parser_;
  Detokenizer detokenizer_;
  OutputSink found_;
  int32_t used_ = 0;
  size_t ending_at_ =
      rules_->ending.size();  // the next token of the ending; behind its end: none is due
  bool just_ended_ = false;
};

class ThinkingBudget : public TokenConstraint {
 public:
  explicit ThinkingBudget(Rules rules) : rules_(std::make_shared<const Rules>(std::move(rules))) {}

  Expected<std::unique_ptr<ConstraintRun>> start() const override {
    std::unique_ptr<ConstraintRun> inner;
    if (rules_->inner) {
      auto started = rules_->inner->start();
      if (!started) return fail(started.error());
      inner = std::move(*started);
    }
    return std::make_unique<BoundedRun>(rules_, std::move(inner));
  }

 private:
  const std::shared_ptr<const Rules> rules_;
};

}  // namespace

Expected<std::shared_ptr<const TokenConstraint>> bound_thinking(
    const ServedModel& model, ThinkStart start, int32_t tokens,
    std::shared_ptr<const TokenConstraint> inner) {
  Rules rules{.budget = tokens,
              .format = model.output,
              .start = start,
              .tokenizer = model.text->tokenizer,
              .vocab_size = model.vocab_size,
              .inner = std::move(inner)};
  const auto markers = think_markers(model.output.reasoning);
  // gpt-oss: the message ends, and the next is in another channel.
  const std::string ending = markers ? markers->end : "<|end|><|start|>assistant<|channel|>";
  if (!markers) rules.banned = rules.tokenizer->token_to_id("analysis");
  auto ids = rules.tokenizer->encode(ending, /*add_special_tokens=*/false, /*parse_special=*/true);
  if (!ids) return fail(ids.error());
  const bool written =
      std::all_of(ids->begin(), ids->end(), [&](TokenId id) { return id < model.vocab_size; });
  if (ids->empty() || !written || model.output.reasoning == ReasoningFormat::kNone) {
    return fail(StatusCode::kUnsupported, "this model's reasoning cannot be ended");
  }
  rules.ending = std::move(*ids);
  return std::make_shared<const ThinkingBudget>(std::move(rules));
}

}  // namespace tailrace
