// TextModel from a GGUF file's metadata.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "text/text_model.h"

namespace tailrace {

Expected<std::shared_ptr<const TextModel>> load_text_model_gguf(const std::string& path);

// Compiles `source` into model->chat_template, or says in model->no_template_reason why there is none.
void set_chat_template(const std::optional<std::string>& source, const ChatTemplateOptions& options, TextModel* model);

}  // namespace tailrace
