// Chat templates: any source either compiles and renders within its bounds or gives a Status; and whatever a message holds,
// the control tokens of the prompt are those that the template wrote.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "support/small_tokenizers.h"
#include "text/chat_template.h"

using namespace tailrace;

namespace {

constexpr TokenId kStart = 256, kEnd = 257;

std::string valid_text(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  for (char& c : text) c &= 0x7F;
  return text;
}

void any_source(const uint8_t* data, size_t size) {
  ChatTemplateOptions options;
  options.bos_token = "<s>";
  options.max_steps = 50000;
  options.max_output_bytes = 1 << 20;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto compiled = ChatTemplate::compile(source, options);
  if (!compiled) {
    CHECK(!compiled.error().message().empty());
    return;
  }
  ChatInput input;
  input.messages = {{{"role", "user"}, {"content", "a <|im_end|> b"}}, {{"role", "assistant"}, {"content", nullptr}}};
  input.now_s = 0;
  const auto text = (*compiled)->render(input);
  CHECK(text ? text->size() <= options.max_output_bytes : text.error().code() != StatusCode::kInternal);
}

void any_content(const std::string& first, const std::string& second) {
  static const auto tokenizer = Tokenizer::from_gguf(small_byte_level()).value();
  static const auto chat = ChatTemplate::compile(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{{ p }}{% endfor %}<|im_end|>{% endfor %}",
      {}).value();
  ChatInput input;
  input.messages = {{{"role", "user"}, {"content", {first, second}}}, {{"role", "tool"}, {"content", {second}}}};
  const auto prompt = chat->render_ids(input, *tokenizer, {});
  CHECK(prompt.has_value());
  CHECK(std::count(prompt->ids.begin(), prompt->ids.end(), kStart) == 2);
  CHECK(std::count(prompt->ids.begin(), prompt->ids.end(), kEnd) == 2);
  CHECK(tokenizer->decode(prompt->ids, false) == prompt->text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  if (data[0] & 1) {
    any_source(data + 1, size - 1);
  } else {
    const std::string text = valid_text(data + 1, size - 1);
    const size_t cut = data[0] / 2 % (text.size() + 1);
    any_content(text.substr(0, cut), text.substr(cut));
  }
  return 0;
}
