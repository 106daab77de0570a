#include "server/choice_stream.h"

#include <algorithm>

namespace tailrace {

ChoiceStream::ChoiceStream(std::shared_ptr<const Request> request, std::shared_ptr<const Tokenizer> tokenizer,
                           std::vector<std::string> stops, TextPosition position)
    : request_(std::move(request)),
      detokenizer_(std::move(tokenizer), /*skip_special=*/true, position),
      matcher_(std::move(stops)) {}

bool ChoiceStream::is_stop_token(TokenId id) const {
  const auto& ids = request_->stop_token_ids;
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void ChoiceStream::accept(TokenEvent event) {
  if (ended_) return;
  if (event.kind == TokenEvent::Kind::kFinish) return finish(event);
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
  const std::string text = detokenizer_.push(event.id);
  if (request_->sampling.num_top_logprobs >= 0) delta_.logprobs.push_back(std::move(event));
  push_text(text);
}

void ChoiceStream::push_text(const std::string& text) {
  if (completion_tokens_ < request_->min_tokens) {
    delta_.text += text;
    return;
  }
  delta_.text += matcher_.push(text);
  if (!matcher_.matched()) return;
  ended_ = true;
  finish_reason_ = "stop";
  request_->stream->cancel();
}

void ChoiceStream::finish(const TokenEvent& event) {
  switch (event.finish) {
    case FinishReason::kStop: finish_reason_ = "stop"; break;
    case FinishReason::kLength: finish_reason_ = "length"; break;
    case FinishReason::kCancelled: error_ = Status(StatusCode::kCancelled, "the request was cancelled"); break;
    case FinishReason::kError: error_ = event.error.ok() ? Status(StatusCode::kInternal, "unknown error") : event.error;
  }
  if (held_stop_token_ && event.finish != FinishReason::kStop) {  // it did not end the sequence, so it is a token like others
    TokenEvent held = std::move(*held_stop_token_);
    held_stop_token_.reset();
    accept_token(std::move(held));
  }
  if (!ended_) push_text(detokenizer_.finish());
  if (!ended_) delta_.text += matcher_.finish();
  ended_ = true;
}

ChoiceDelta ChoiceStream::take_delta() {
  if (!ended_ && delta_.text.empty()) return {};
  return std::exchange(delta_, {});
}

}  // namespace tailrace
