// ChoiceStream: turns one sequence's token events into what may be sent: content, reasoning, tool calls, log
// probabilities and a finish reason.
//
// Rules, the same whether streamed or not. completion_tokens counts every generated token: the end-of-sequence or
// stop token too, and with a stop string all tokens up to and including the one that completed the match. Text holds
// neither stop tokens nor the stop string. Log probabilities are listed for every counted token except a stop token.
// Before min_tokens tokens stop strings are not looked for. They are looked for in the content alone: not in
// reasoning, not in calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/request.h"
#include "output/output_parser.h"
#include "server/answer_pieces.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace tailrace {

// How a choice's tokens are read.
struct ChoiceRules {
  std::vector<std::string> stops;
  TextPosition position = TextPosition::kBegin;
  std::unique_ptr<OutputParser> parser;  // null: all text is content
  bool parallel_calls = true;            // else the choice ends with its first call
  uint64_t call_seed = 0;                // draws the ids of calls
  bool silent = false;                   // no token is the answer's, which ends as if it had come to its length
};

class ChoiceStream {
 public:
  ChoiceStream(std::shared_ptr<const Request> request, std::shared_ptr<const Tokenizer> tokenizer, ChoiceRules rules);

  // Events after the end are dropped. A completed stop string cancels the request, and so does the end of the one call.
  void accept(TokenEvent event);
  // Empty while all is held back (unless the sequence has ended): log probabilities go out with their text.
  ChoiceDelta take_delta();

  bool ended() const { return ended_; }
  // "stop", "length", "abort" (cancelled, and not by the client's leaving) or "tool_calls" (a whole call, and nothing cut);
  // null before the end and on an error.
  const char* finish_reason() const { return finish_reason_; }
  const Status& error() const { return error_; }                // not ok: the engine ended the request with an error
  // The stop string that ended the choice; "" where none did.
  std::string stop_string() const { return matcher_.matched() ? matcher_.matched_stop() : ""; }
  int32_t completion_tokens() const { return completion_tokens_; }
  int32_t reasoning_tokens() const { return reasoning_tokens_; }  // of them: reasoning and its markers
  const std::shared_ptr<const Request>& request() const { return request_; }

 private:
  void accept_token(TokenEvent event);
  OutputPart part() const { return parser_ ? parser_->part() : OutputPart::kContent; }
  void add(AnswerPiece piece);
  void add_content(std::string text);
  void push_text(const std::string& text);
  void push_content(const std::string& text);
  void take_events();
  void begin_call(std::string name);
  void add_to_call(std::string json, bool complete);
  void end(const char* reason);
  void finish(const TokenEvent& event);
  bool is_stop_token(TokenId id) const;

  const std::shared_ptr<const Request> request_;
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  std::unique_ptr<OutputParser> parser_;
  OutputSink found_;
  const bool parallel_calls_;
  const uint64_t call_seed_;
  const bool silent_;
  int32_t num_calls_ = 0;
  bool whole_call_ = false;  // one at least was written to its end
  std::optional<TokenEvent> held_stop_token_;  // a stop token, text only if the sequence goes on (min_tokens)
  ChoiceDelta delta_;
  AnswerPiece last_;  // without its text
  int32_t num_runs_ = 0;
  int32_t completion_tokens_ = 0, reasoning_tokens_ = 0;
  bool ended_ = false;
  const char* finish_reason_ = nullptr;
  Status error_;
};

}  // namespace tailrace
