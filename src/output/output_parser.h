// What an answer consists of, found while it is generated: visible text, reasoning and tool calls.
//
// Parsers are total: whatever tokens come, each piece of text ends up as content, as reasoning or in a call, and text
// that only looked like a call is content. They keep back what may still become a marker, and nothing else.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/request.h"

namespace tailrace {

struct OutputEvent {
  enum class Kind {
    kContent,
    kReasoning,
    kCallBegin,      // text: the function's name, one of those offered
    kCallArguments,  // a piece of the call's arguments: joined, one JSON object that parse_json takes
    kCallEnd,        // complete: whether the model wrote the call to its end
  };
  Kind kind = Kind::kContent;
  std::string text;
  bool complete = false;
};

// Collects a parser's findings in order; neighbouring pieces of one kind are joined.
class OutputSink {
 public:
  void content(std::string_view text) { add(OutputEvent::Kind::kContent, text); }
  void reasoning(std::string_view text) { add(OutputEvent::Kind::kReasoning, text); }
  void begin_call(std::string_view name) { events_.push_back({OutputEvent::Kind::kCallBegin, std::string(name)}); }
  void arguments(std::string_view json) { add(OutputEvent::Kind::kCallArguments, json); }
  void end_call(bool complete) { events_.push_back({OutputEvent::Kind::kCallEnd, "", complete}); }

  std::vector<OutputEvent> take() { return std::exchange(events_, {}); }

 private:
  void add(OutputEvent::Kind kind, std::string_view text) {
    if (text.empty()) return;
    if (!events_.empty() && events_.back().kind == kind) {
      events_.back().text += text;
    } else {
      events_.push_back({kind, std::string(text)});
    }
  }

  std::vector<OutputEvent> events_;
};

// What the text at a place of an answer is part of.
enum class OutputPart {
  kContent,
  kReasoning,
  kCall,
  kFrame,  // between these: headers, white space that no one has claimed yet
};

// One per sequence; not thread-safe.
class OutputParser {
 public:
  virtual ~OutputParser() = default;

  // Tokens that mean something by their id; their text is not pushed.
  virtual bool is_control(TokenId id) const = 0;
  virtual void control(TokenId id, OutputSink& out) = 0;
  // Text of all other tokens, cut anywhere between characters.
  virtual void text(std::string_view text, OutputSink& out) = 0;
  // The sequence is over, wherever it was: a call that is open gets valid JSON and an end that is not complete.
  virtual void finish(OutputSink& out) = 0;
  // Where the answer has come to.
  virtual OutputPart part() const = 0;
};

}  // namespace tailrace
