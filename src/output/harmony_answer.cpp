#include "output/harmony_answer.h"

#include <algorithm>
#include <vector>

namespace tailrace {
namespace {

constexpr size_t kMaxHeaderBytes = 512;
constexpr std::string_view kBetween = "\n\n";  // messages of one kind
constexpr std::string_view kTo = "to=", kFunctions = "functions.";

// Words between white space.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = text.find_first_not_of(" \n\r\t");
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const size_t end = std::min(text.find_first_of(" \n\r\t"), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

// The function that a header is addressed to; "" for none, and where its recipients differ.
std::string recipient_of(std::string_view header) {
  std::string found;
  for (std::string_view word : words_of(header)) {
    if (!word.starts_with(kTo)) continue;
    word.remove_prefix(kTo.size());
    if (word.starts_with(kFunctions)) word.remove_prefix(kFunctions.size());
    if (!found.empty() && found != word) return {};
    found = word;
  }
  return found;
}

bool has_recipient(std::string_view header) {
  const auto words = words_of(header);
  return std::any_of(words.begin(), words.end(), [](std::string_view word) { return word.starts_with(kTo); });
}

// A word of a header, or, where it is the last one and may go on, a beginning of it.
bool matches(std::string_view word, std::string_view expected, bool may_go_on) {
  return may_go_on ? expected.starts_with(word) : word == expected;
}

// to=..., and nothing else, but for `first` as first word and `last` as last: one of those listed.
bool readable(std::string_view header, const std::vector<std::string_view>& first,
              const std::vector<std::string_view>& others) {
  const auto words = words_of(header);
  const bool open = !header.empty() && header.find_last_of(" \n\r\t") != header.size() - 1;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool may_go_on = open && i + 1 == words.size();
    const auto is = [&](std::string_view expected) { return matches(words[i], expected, may_go_on); };
    const bool recipient = words[i].starts_with(kTo) || (may_go_on && kTo.starts_with(words[i]));
    if (recipient || std::any_of(others.begin(), others.end(), is)) continue;
    if (i > 0 || std::none_of(first.begin(), first.end(), is)) return false;
  }
  return true;
}

}  // namespace

HarmonyTokens::HarmonyTokens(const Tokenizer& tokenizer) {
  const auto id = [&](const char* spelling) { return tokenizer.token_to_id(spelling).value_or(-1); };
  start = id("<|start|>"), end = id("<|end|>"), message = id("<|message|>"), channel = id("<|channel|>");
  constrain = id("<|constrain|>"), call = id("<|call|>"), ret = id("<|return|>");
}

bool HarmonyAnswer::is_control(TokenId id) const {
  const HarmonyTokens& t = tokens_;
  return id >= 0 && (id == t.start || id == t.end || id == t.message || id == t.channel || id == t.constrain ||
                     id == t.call || id == t.ret);
}

void HarmonyAnswer::control(TokenId id, OutputSink& out) {
  const bool in_header = state_ == State::kRole || state_ == State::kChannel;
  if (id == tokens_.constrain) {
    if (state_ == State::kChannel) channel_ += ' ';
  } else if (id == tokens_.message) {
    if (in_header) begin_message(out);
  } else if (id == tokens_.channel && state_ == State::kRole) {
    state_ = State::kChannel;
  } else {  // <|start|>, an end, or a <|channel|> where a message or another channel was going on
    end_message(out);
    if (id == tokens_.channel) state_ = State::kChannel;
  }
}

void HarmonyAnswer::text(std::string_view text, OutputSink& out) {
  switch (state_) {
    case State::kContent: return content(text, out);
    case State::kReasoning:
      if (std::exchange(new_reasoning_, false) && std::exchange(any_reasoning_, true)) out.reasoning(kBetween);
      return out.reasoning(text);
    case State::kCall: return call_text(text, out);
    default: break;
  }
  (state_ == State::kRole ? role_ : channel_) += text;
  if (header_is_readable()) return;
  state_ = State::kContent;
  header_as_content(out);
}

void HarmonyAnswer::content(std::string_view text, OutputSink& out) {
  if (text.empty()) return;
  if (std::exchange(new_content_, false) && std::exchange(any_content_, true)) out.content(kBetween);
  out.content(text);
}

void HarmonyAnswer::call_text(std::string_view text, OutputSink& out) {
  text.remove_prefix(call_->push(text, out));
  if (!call_->broken()) text.remove_prefix(std::min(text.find_first_not_of(" \n\r\t"), text.size()));
  if (!call_->broken() && text.empty()) return;
  const std::string rest = call_->unread() + std::string(text);
  call_.reset();
  state_ = State::kContent;
  new_content_ = true;
  content(rest, out);
}

void HarmonyAnswer::header_as_content(OutputSink& out) {
  new_content_ = true;
  content(std::exchange(role_, {}) + std::exchange(channel_, {}), out);
}

// Whether the header may become one, so far.
bool HarmonyAnswer::header_is_readable() const {
  return role_.size() + channel_.size() <= kMaxHeaderBytes && readable(role_, {"assistant"}, {}) &&
         readable(channel_, {"analysis", "commentary", "final"}, {"json", "code"});
}

void HarmonyAnswer::begin_message(OutputSink& out) {
  const std::string name = recipient_of(role_ + ' ' + channel_);
  const auto words = words_of(channel_);
  new_content_ = new_reasoning_ = true;
  if (tools_ && tools_->has(name)) {
    call_.emplace(name);
    state_ = State::kCall;
  } else if (has_recipient(role_) || has_recipient(channel_)) {  // to nobody we know
    state_ = State::kContent;
    header_as_content(out);
  } else {
    state_ = reasoning_ && !words.empty() && words[0] == "analysis" ? State::kReasoning : State::kContent;
  }
  role_.clear();
  channel_.clear();
}

// Leaves the message or header, wherever it was.
void HarmonyAnswer::end_message(OutputSink& out) {
  if (state_ == State::kCall) {
    if (!call_->begun()) call_->push("{}", out);  // a call without arguments
    call_->interrupt(out);
    new_content_ = true;
    content(call_->unread(), out);
    call_.reset();
  } else if (has_recipient(role_) || has_recipient(channel_)) {
    header_as_content(out);  // of a message that never came
  }
  role_.clear();
  channel_.clear();
  state_ = State::kRole;
}

OutputPart HarmonyAnswer::part() const {
  switch (state_) {
    case State::kContent: return OutputPart::kContent;
    case State::kReasoning: return OutputPart::kReasoning;
    case State::kCall: return OutputPart::kCall;
    default: return OutputPart::kFrame;
  }
}

void HarmonyAnswer::finish(OutputSink& out) {
  if (state_ == State::kCall) {
    call_->finish(out);
  } else {
    end_message(out);
  }
}

}  // namespace tailrace
