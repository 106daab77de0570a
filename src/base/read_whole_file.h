// Reading a file whole.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace tailrace {

// All bytes of a file, or of a pipe until it ends. kNotFound: there is none; kTooLarge: more than
// `max_bytes`; kDataLoss: it cannot be read. Messages begin with the path.
Expected<std::string> read_whole_file(const std::string& path, size_t max_bytes);

}  // namespace tailrace
