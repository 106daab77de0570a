// ChoiceStream: turns one sequence's token events into text that may be sent, log probabilities and a finish reason.
//
// Rules, the same whether streamed or not. completion_tokens counts every generated token: the end-of-sequence or stop
// token too, and with a stop string all tokens up to and including the one that completed the match. Text holds neither stop
// tokens nor the stop string. Log probabilities are listed for every counted token except a stop token. Before min_tokens
// tokens stop strings are not looked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/request.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace tailrace {

// What became certain since the last take.
struct ChoiceDelta {
  std::string text;
  std::vector<TokenEvent> logprobs;  // events whose log probabilities are due; empty unless asked for
};

class ChoiceStream {
 public:
  ChoiceStream(std::shared_ptr<const Request> request, std::shared_ptr<const Tokenizer> tokenizer,
               std::vector<std::string> stops, TextPosition position);

  // Events after the end are dropped. A completed stop string cancels the request.
  void accept(TokenEvent event);
  // Empty while text is held back (unless the sequence has ended): log probabilities go out with their text.
  ChoiceDelta take_delta();

  bool ended() const { return ended_; }
  const char* finish_reason() const { return finish_reason_; }  // "stop" or "length"; null before the end and on an error
  const Status& error() const { return error_; }                // not ok: the engine ended the request with an error
  int32_t completion_tokens() const { return completion_tokens_; }
  const std::shared_ptr<const Request>& request() const { return request_; }

 private:
  void accept_token(TokenEvent event);
  void push_text(const std::string& text);
  void finish(const TokenEvent& event);
  bool is_stop_token(TokenId id) const;

  const std::shared_ptr<const Request> request_;
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  std::optional<TokenEvent> held_stop_token_;  // a stop token, text only if the sequence goes on (min_tokens)
  ChoiceDelta delta_;
  int32_t completion_tokens_ = 0;
  bool ended_ = false;
  const char* finish_reason_ = nullptr;
  Status error_;
};

}  // namespace tailrace
