// Tokenizers of tests/fixtures/tokenizers, and small helpers for tests of the text layer.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tailrace {

inline std::string read_fixture(const std::string& name) {
  std::ifstream in(std::string(TAILRACE_SOURCE_DIR) + "/tests/fixtures/tokenizers/" + name, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

inline std::shared_ptr<const Tokenizer> fixture_tokenizer(const std::string& name) {
  const auto tokenizer = Tokenizer::from_json(read_fixture(name));
  if (!tokenizer) {
    ADD_FAILURE() << name << ": " << tokenizer.error().message();
    return nullptr;
  }
  return *tokenizer;
}

inline std::shared_ptr<const ChatTemplate> compile_or_fail(const std::string& source,
                                                           const ChatTemplateOptions& options = {}) {
  const auto compiled = ChatTemplate::compile(source, options);
  if (!compiled) {
    ADD_FAILURE() << compiled.error().message();
    return nullptr;
  }
  return *compiled;
}

inline ChatInput chat_of(OrderedJson messages) {
  ChatInput input;
  input.messages = std::move(messages);
  return input;
}

// Renders with variables in place of messages, as TPL cases do.
inline std::string render_with(const std::string& source, OrderedJson kwargs = OrderedJson::object()) {
  ChatInput input;
  if (kwargs.contains("messages")) input.messages = kwargs["messages"];
  input.kwargs = std::move(kwargs);
  const auto compiled = ChatTemplate::compile(source, {});
  if (!compiled) return "compile: " + compiled.error().message();
  const auto text = (*compiled)->render(input);
  return text ? *text : "render: " + text.error().message();
}

}  // namespace tailrace
