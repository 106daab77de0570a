// encrypted_content of reasoning items: the reasoning itself in an opaque form, for clients that send nothing else
// back.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tailrace {

// Not a secret, since the same reasoning stands open beside it: a prefix that names the form, and base64 (RFC 4648, 4).
std::string seal_reasoning(std::string_view text);

// None for what seal_reasoning did not make.
std::optional<std::string> open_reasoning(std::string_view sealed);

}  // namespace tailrace
