#include "output/json_text.h"

#include <algorithm>

#include "output/json_stream.h"

namespace tailrace {

std::string json_value_or_string(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \n\r\t"), text.size());
  const std::string_view inner = text.substr(begin, text.find_last_not_of(" \n\r\t") + 1 - begin);
  JsonStream probe(/*object_only=*/false, JsonStream::kMaxDepth - 1);  // it will stand inside of the arguments
  std::string json;
  const size_t taken = probe.push(inner, &json);
  probe.end_of_input(&json);
  return taken == inner.size() && probe.state() == JsonStream::State::kDone ? json : json_quoted(text);
}

}  // namespace tailrace
