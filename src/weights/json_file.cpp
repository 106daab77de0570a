#include "weights/json_file.h"

#include "weights/mapped_file.h"

namespace tailrace {

Expected<nlohmann::json> read_json_file(const std::string& path) {
  constexpr int kMaxDepth = 64;
  const Expected<std::shared_ptr<MappedFile>> file = MappedFile::open(path);
  if (!file) return fail(file.error());
  const std::span<const std::byte> bytes = (*file)->bytes();
  if (bytes.size() > kMaxJsonFileBytes) return fail(StatusCode::kDataLoss, path + ": the file is too large");
  bool too_deep = false;
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep |= depth > kMaxDepth;
    return !too_deep;
  };
  const char* text = reinterpret_cast<const char*>(bytes.data());
  nlohmann::json parsed = nlohmann::json::parse(text, text + bytes.size(), limit_depth, /*allow_exceptions=*/false);
  if (too_deep) return fail(StatusCode::kDataLoss, path + ": nested too deeply");
  if (parsed.is_discarded()) return fail(StatusCode::kDataLoss, path + ": not valid JSON (truncated?)");
  if (!parsed.is_object()) return fail(StatusCode::kDataLoss, path + ": not a JSON object");
  return parsed;
}

}  // namespace tailrace
