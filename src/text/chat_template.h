// A model's own chat template: messages in, prompt text or prompt ids out.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/request.h"
#include "base/status.h"
#include "text/tokenizer.h"

struct tk_template;  // rust/textkit/textkit.h

namespace tailrace {

using OrderedJson = nlohmann::ordered_json;

// Variables that Hugging Face passes to every template, and bounds on what one render may cost.
struct ChatTemplateOptions {
  std::string bos_token, eos_token;           // as text; empty: the variable is undefined
  OrderedJson extra = OrderedJson::object();  // further variables: unk_token, pad_token ...
  uint64_t max_steps = 10'000'000;            // template instructions
  uint64_t max_output_bytes = 64u << 20;
};

struct ChatInput {
  OrderedJson messages = OrderedJson::array();   // as on the wire; key order survives to the prompt
  OrderedJson tools;                             // array, or null: the variable is none
  OrderedJson kwargs = OrderedJson::object();    // chat_template_kwargs: further variables; the above take precedence
  bool add_generation_prompt = true;
  std::optional<int64_t> now_s;                  // strftime_now's clock, Unix seconds; the present when absent
};

struct RenderedPrompt {
  std::string text;
  std::vector<TokenId> ids;
};

// Conversations that not every template can write: some raise at them, some leave a message out.
struct TemplateHabits {
  bool later_system = true;   // system messages behind the first message
  bool system_always = true;  // the first one also where no user's message comes last
  bool user_runs = true;      // one user message after another
  bool late_results = true;   // other messages between a call and its result
  bool tools = true;          // the functions that are offered
};

// What does not come in a conversation's prompt.
struct LeftOut {
  std::optional<size_t> message;  // the first of system, user or tool of whose text that is so
  std::optional<size_t> call;     // the first message with a function's call of whose name that is so
  bool tool = false;              // one of the functions that are offered
};

// Thread-safe and immutable.
class ChatTemplate {
 public:
  // kUnsupported, naming line and construct, when the source is not a template that this build can run.
  static Expected<std::shared_ptr<const ChatTemplate>> compile(std::string_view source,
                                                               const ChatTemplateOptions& options);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // kInvalidArgument with the template's words when it calls raise_exception or fails on these messages; kTooLarge when
  // a bound is exceeded. Never another template.
  Expected<std::string> render(const ChatInput& input) const;

  // Renders and tokenizes, without the post-processor's BOS/EOS: the template writes its own. A control token counts
  // only where the template wrote it: its text inside messages, tools or kwargs stays text. A control token is one that
  // the tokenizer marks special, or one of `control_ids` (TextModel::eos_ids). Added tokens that are neither
  // ("<think>") are ordinary vocabulary and become their ids wherever they stand, as in the reference.
  Expected<RenderedPrompt> render_ids(const ChatInput& input, const Tokenizer& tokenizer,
                                      const std::vector<TokenId>& control_ids) const;

  // What the template leaves out of this conversation, which it renders; of a template that does not even write a plain
  // one, tools alone. Found by rendering it once more with marks for texts and for the tools' names.
  LeftOut left_out(const ChatInput& input) const;

  const std::string& source() const { return source_; }
  // Whether the template does something with this variable (of ChatInput::kwargs).
  bool reads(const std::string& variable) const { return variables_.count(variable) != 0; }
  // Found by rendering such conversations, when it was compiled.
  const TemplateHabits& habits() const { return habits_; }

 private:
  ChatTemplate(tk_template* handle, std::string source) : handle_(handle), source_(std::move(source)) {}
  // Whether every message comes, in its order. `roles`: s(ystem), u(ser), a(ssistant), c(all) or t(ool), a message
  // each.
  bool writes(std::string_view roles) const;

  tk_template* handle_;
  std::string source_;
  std::set<std::string> variables_;
  bool writes_chats_ = false;  // plain ones
  TemplateHabits habits_;
};

}  // namespace tailrace
