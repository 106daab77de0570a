// TextModel from a GGUF file's metadata.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "text/text_model.h"

namespace tailrace {

Expected<std::shared_ptr<const TextModel>> load_text_model_gguf(const std::string& path);

// Compiles `source`, if there is one, into model->chat_template. kUnsupported, naming `path`, when it does not compile.
Status set_chat_template(const std::optional<std::string>& source, const ChatTemplateOptions& options,
                         const std::string& path, TextModel* model);

}  // namespace tailrace
