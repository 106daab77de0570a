// HarmonyAnswer: answers of gpt-oss, messages between control tokens that are told apart by their ids.
//   <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
//   <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "output/call_arguments.h"
#include "output/offered_tools.h"
#include "output/output_parser.h"
#include "text/tokenizer.h"

namespace tailrace {

// The control tokens of a vocabulary; -1 where it has none.
struct HarmonyTokens {
  explicit HarmonyTokens(const Tokenizer& tokenizer);
  // A message needs these two at least.
  bool usable() const { return channel >= 0 && message >= 0; }

  TokenId start, end, message, channel, constrain, call, ret;
};

// The channel analysis is reasoning; final, commentary and a missing channel are content; a message to an offered
// function, in whatever channel and with its recipient before or after the channel's name, is a call. Every sequence
// of tokens means something: a message starts wherever its tokens appear; one to somebody else is content with its
// header; a header that cannot be read is content, and so is what follows it.
class HarmonyAnswer : public OutputParser {
 public:
  // `tools` null: none are offered. Without `reasoning` the analysis is content.
  HarmonyAnswer(const HarmonyTokens& tokens, bool reasoning, std::shared_ptr<const OfferedTools> tools)
      : tokens_(tokens), reasoning_(reasoning), tools_(std::move(tools)) {}

  bool is_control(TokenId id) const override;
  void control(TokenId id, OutputSink& out) override;
  void text(std::string_view text, OutputSink& out) override;
  void finish(OutputSink& out) override;
  OutputPart part() const override;

 private:
  enum class State {
    kRole,     // in the header, before <|channel|>: a role, a recipient
    kChannel,  // in the header, after it: channel, recipient, content type
    kContent, kReasoning, kCall,  // in a message
  };

  bool header_is_readable() const;
  void content(std::string_view text, OutputSink& out);
  void call_text(std::string_view text, OutputSink& out);
  void header_as_content(OutputSink& out);
  void begin_message(OutputSink& out);
  void end_message(OutputSink& out);

  const HarmonyTokens tokens_;
  const bool reasoning_;
  const std::shared_ptr<const OfferedTools> tools_;
  State state_ = State::kRole;
  std::string role_;      // the header's text before <|channel|>, and
  std::string channel_;   // after it
  std::optional<CallArguments> call_;
  bool any_content_ = false, any_reasoning_ = false;
  bool new_content_ = false, new_reasoning_ = false;  // a message began: an empty line parts it from the last
};

}  // namespace tailrace
