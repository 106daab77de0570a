#include "server/choice_stream.h"

#include <algorithm>
#include <utility>

#include "server/seed_source.h"

namespace tailrace {

namespace {

constexpr size_t kCallIdBytes = 9;  // what Mistral's templates ask of an id; the others take any

}  // namespace

ChoiceStream::ChoiceStream(std::shared_ptr<const Request> request, std::shared_ptr<const Tokenizer> tokenizer,
                           ChoiceRules rules)
    : request_(std::move(request)),
      detokenizer_(std::move(tokenizer), /*skip_special=*/true, rules.position),
      matcher_(std::move(rules.stops)),
      parser_(std::move(rules.parser)),
      parallel_calls_(rules.parallel_calls),
      call_seed_(rules.call_seed),
      silent_(rules.silent) {}

bool ChoiceStream::is_stop_token(TokenId id) const {
  const auto& ids = request_->stop_token_ids;
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void ChoiceStream::accept(TokenEvent event) {
  if (ended_) return;
  if (event.kind == TokenEvent::Kind::kFinish) return finish(event);
  if (silent_) return;
  ++completion_tokens_;
  if (held_stop_token_) {
    TokenEvent held = std::move(*held_stop_token_);
    held_stop_token_.reset();
    accept_token(std::move(held));
  }
  if (ended_) return;
  if (is_stop_token(event.id)) {
    held_stop_token_ = std::move(event);
  } else {
    accept_token(std::move(event));
  }
}

void ChoiceStream::accept_token(TokenEvent event) {
  const bool control = parser_ && parser_->is_control(event.id);
  const std::string text = control ? detokenizer_.flush() : detokenizer_.push(event.id);
  const OutputPart before = part();
  push_text(text);
  if (control && !ended_) {
    parser_->control(event.id, found_);
    take_events();
  }
  const OutputPart after = part();
  if (before == OutputPart::kReasoning || after == OutputPart::kReasoning) ++reasoning_tokens_;
  if (request_->sampling.num_top_logprobs < 0) return;
  const bool content = !control && after == OutputPart::kContent;
  delta_.logprobs.push_back({.event = std::move(event), .content = content, .run = num_runs_});
}

void ChoiceStream::push_text(const std::string& text) {
  if (!parser_) return push_content(text);
  if (text.empty()) return;
  parser_->text(text, found_);
  take_events();
}

void ChoiceStream::take_events() {
  for (OutputEvent& event : found_.take()) {
    switch (event.kind) {
      case OutputEvent::Kind::kContent: push_content(event.text); break;
      case OutputEvent::Kind::kReasoning:
        add({.kind = AnswerPiece::Kind::kReasoning, .text = std::move(event.text)});
        break;
      case OutputEvent::Kind::kCallBegin:
        if (!parallel_calls_ && num_calls_ > 0) return end("stop");
        begin_call(std::move(event.text));
        break;
      case OutputEvent::Kind::kCallArguments:
        add_to_call(std::move(event.text), /*complete=*/false);
        break;
      case OutputEvent::Kind::kCallEnd:
        whole_call_ |= event.complete;
        if (event.complete) add_to_call({}, /*complete=*/true);
        if (!parallel_calls_ && event.complete) return end("stop");
    }
    if (ended_) return;
  }
}

void ChoiceStream::begin_call(std::string name) {
  const std::string id = letters_and_digits(call_seed_ + static_cast<uint64_t>(num_calls_), kCallIdBytes);
  add({.kind = AnswerPiece::Kind::kCall, .call = num_calls_++, .call_id = id, .name = std::move(name)});
}

void ChoiceStream::add_to_call(std::string json, bool complete) {
  add({.kind = AnswerPiece::Kind::kCall, .text = std::move(json), .call = num_calls_ - 1, .complete = complete});
}

void ChoiceStream::add(AnswerPiece piece) {
  if (num_runs_ == 0 || !last_.goes_on(piece)) {
    ++num_runs_;
    last_ = {.kind = piece.kind, .call = piece.call};
  }
  delta_.add(std::move(piece));
}

void ChoiceStream::add_content(std::string text) {
  if (!text.empty()) add({.kind = AnswerPiece::Kind::kContent, .text = std::move(text)});
}

// Ends the choice before the sequence does.
void ChoiceStream::end(const char* reason) {
  ended_ = true;
  finish_reason_ = whole_call_ ? "tool_calls" : reason;
  add_content(matcher_.finish());
  request_->stream->cancel();
}

void ChoiceStream::push_content(const std::string& text) {
  if (completion_tokens_ < request_->min_tokens) {
    add_content(text);
    return;
  }
  add_content(matcher_.push(text));
  if (!matcher_.matched()) return;
  ended_ = true;
  finish_reason_ = "stop";
  request_->stream->cancel();
}

void ChoiceStream::finish(const TokenEvent& event) {
  switch (event.finish) {
    case FinishReason::kStop: finish_reason_ = silent_ ? "length" : "stop"; break;
    case FinishReason::kLength: finish_reason_ = "length"; break;
    case FinishReason::kCancelled: finish_reason_ = "abort"; break;
    case FinishReason::kError: error_ = event.error.ok() ? Status(StatusCode::kInternal, "unknown error") : event.error;
  }
  if (held_stop_token_ && event.finish != FinishReason::kStop) {  // it ended nothing, so it is a token like others
    TokenEvent held = std::move(*held_stop_token_);
    held_stop_token_.reset();
    accept_token(std::move(held));
  }
  if (!ended_) push_text(detokenizer_.flush());
  if (!ended_ && held_stop_token_ && parser_ && parser_->is_control(held_stop_token_->id)) {
    parser_->control(held_stop_token_->id, found_);
    take_events();
  }
  if (!ended_ && parser_) {
    parser_->finish(found_);
    take_events();
  }
  if (ended_) return;
  add_content(matcher_.finish());
  ended_ = true;
  if (whole_call_ && event.finish == FinishReason::kStop) finish_reason_ = "tool_calls";
}

ChoiceDelta ChoiceStream::take_delta() {
  if (!ended_ && delta_.empty()) return {};
  return std::exchange(delta_, {});
}

}  // namespace tailrace
