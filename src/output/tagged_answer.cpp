#include "output/tagged_answer.h"

#include <algorithm>
#include <utility>

namespace tailrace {
namespace {

constexpr int kBegin = 0, kEnd = 1;

std::vector<std::string> all_markers(const std::optional<ThinkMarkers>& think, const ToolStage* tools) {
  std::vector<std::string> out;
  if (think) out = {think->begin, think->end};
  if (tools == nullptr) return out;
  for (std::string& marker : tools->markers()) out.push_back(std::move(marker));
  return out;
}

}  // namespace

TaggedAnswer::TaggedAnswer(std::optional<ThinkMarkers> think, ThinkStart start, std::unique_ptr<ToolStage> tools,
                           const Tokenizer& tokenizer)
    : think_(std::move(think)),
      tools_(std::move(tools)),
      lexer_(all_markers(think_, tools_.get()), tokenizer),
      state_(!think_ || start == ThinkStart::kOutside ? State::kContent
             : start == ThinkStart::kInside           ? State::kInside
                                                      : State::kUnsaid) {}

void TaggedAnswer::control(TokenId id, OutputSink& out) {
  std::vector<MarkerLexer::Piece> pieces;
  lexer_.control(id, &pieces);
  take(pieces, out);
}

void TaggedAnswer::text(std::string_view text, OutputSink& out) {
  std::vector<MarkerLexer::Piece> pieces;
  lexer_.text(text, &pieces);
  take(pieces, out);
}

void TaggedAnswer::take(const std::vector<MarkerLexer::Piece>& pieces, OutputSink& out) {
  const int num_think = think_ ? 2 : 0;
  for (const auto& piece : pieces) {
    if (piece.marker < 0) {
      take_text(piece.text, out);
    } else if (piece.marker < num_think) {
      take_marker(piece.marker, piece.text, out);
    } else if (state_ == State::kInside || state_ == State::kHeader) {
      take_text(piece.text, out);
    } else {
      if (state_ != State::kContent) take_content("", out);
      tools_->marker(piece.marker - num_think, piece.text, out);
    }
  }
}

void TaggedAnswer::take_marker(int marker, const std::string& spelling, OutputSink& out) {
  const bool in_call = tools_ && !tools_->idle();
  const bool inside = state_ == State::kInside || state_ == State::kHeader;
  const bool may_begin = state_ == State::kUnsaid || (think_->reopens && !inside && !in_call);
  if (inside && marker == kEnd) {
    state_ = State::kAfter;
    held_.clear();
  } else if (marker == kBegin && may_begin) {
    begin_reasoning();
  } else if (!(inside && marker == kBegin && !any_reasoning_)) {  // the prompt had opened it already
    take_text(spelling, out);
  }
}

void TaggedAnswer::begin_reasoning() {
  state_ = think_->header.empty() ? State::kInside : State::kHeader;
  any_reasoning_ = false;
  held_.clear();
}

void TaggedAnswer::take_text(std::string_view text, OutputSink& out) {
  switch (state_) {
    case State::kHeader: return take_header(text, out);
    case State::kInside: return take_reasoning(text, out);
    case State::kContent: return take_content(text, out);
    case State::kAfter: {
      const size_t begin = std::min(text.find_first_not_of("\r\n"), text.size());
      if (begin < text.size()) take_content(text.substr(begin), out);
      return;
    }
    case State::kUnsaid:
      held_ += text;
      if (text.find_first_not_of(" \r\n\t") != std::string_view::npos) take_content("", out);
  }
}

void TaggedAnswer::take_header(std::string_view text, OutputSink& out) {
  held_ += text;
  const std::string& header = think_->header;
  if (held_.size() < header.size() && header.starts_with(held_)) return;
  const std::string rest = std::exchange(held_, {});
  state_ = State::kInside;
  take_reasoning(std::string_view(rest).substr(rest.starts_with(header) ? header.size() : 0), out);
}

void TaggedAnswer::take_reasoning(std::string_view text, OutputSink& out) {
  if (!any_reasoning_) text.remove_prefix(std::min(text.find_first_not_of("\r\n"), text.size()));
  if (text.empty()) return;
  any_reasoning_ = true;
  const size_t end = text.find_last_not_of("\r\n");
  if (end == std::string_view::npos) {
    held_ += text;
    return;
  }
  out.reasoning(std::exchange(held_, {}));
  out.reasoning(text.substr(0, end + 1));
  held_ = text.substr(end + 1);
}

void TaggedAnswer::take_content(std::string_view text, OutputSink& out) {
  const std::string joined = std::exchange(held_, {}) + std::string(text);
  state_ = State::kContent;
  if (tools_) {
    tools_->text(joined, out);
  } else {
    out.content(joined);
  }
}

OutputPart TaggedAnswer::part() const {
  switch (state_) {
    case State::kHeader:
    case State::kInside: return OutputPart::kReasoning;
    case State::kUnsaid:
    case State::kAfter: return OutputPart::kFrame;
    case State::kContent: break;
  }
  return tools_ && !tools_->idle() ? OutputPart::kCall : OutputPart::kContent;
}

void TaggedAnswer::finish(OutputSink& out) {
  std::vector<MarkerLexer::Piece> pieces;
  lexer_.finish(&pieces);
  take(pieces, out);
  if (state_ == State::kHeader) take_reasoning(std::exchange(held_, {}), out);
  if (state_ == State::kUnsaid) take_content("", out);
  if (tools_) tools_->finish(out);
}

}  // namespace tailrace
