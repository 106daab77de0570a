#include "weights/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

namespace tailrace {
namespace {

constexpr size_t kMaxDims = 8;
constexpr size_t kMaxNameLength = 1024;
constexpr int kMaxHeaderDepth = 8;
constexpr size_t kMaxHeaderValues = 4'000'000;  // a tensor takes about nine

struct StoredType {
  const char* name;
  int bytes;                     // of an element; 0: smaller than a byte
  std::optional<Format> format;  // empty: well-formed, but not computed on here
};

// Every type of the safetensors format, so that a file that holds others is named for what it is.
constexpr StoredType kTypes[] = {
    {"F32", 4, Format::kF32},     {"F16", 2, Format::kF16},     {"BF16", 2, Format::kBF16},
    {"F64", 8, std::nullopt},     {"I64", 8, std::nullopt},     {"U64", 8, std::nullopt},
    {"C64", 8, std::nullopt},     {"I32", 4, std::nullopt},     {"U32", 4, std::nullopt},
    {"I16", 2, std::nullopt},     {"U16", 2, std::nullopt},     {"I8", 1, std::nullopt},
    {"U8", 1, Format::kU8},      {"BOOL", 1, std::nullopt},    {"F8_E4M3", 1, Format::kF8E4M3},
    {"F8_E5M2", 1, std::nullopt}, {"F8_E8M0", 1, std::nullopt}, {"F6_E2M3", 0, std::nullopt},
    {"F6_E3M2", 0, std::nullopt}, {"F4", 0, std::nullopt},
};

const StoredType* find_type(const std::string& name) {
  for (const StoredType& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

// Builds the header's JSON while rejecting duplicate keys and deep nesting, which nlohmann's parser lets pass.
Expected<nlohmann::json> parse_header(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  std::string problem;
  size_t num_values = 0;
  const auto callback = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kMaxHeaderDepth) problem = "is nested too deeply";
    if (++num_values > kMaxHeaderValues) problem = "holds too many values";
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end && !keys.empty()) keys.pop_back();
    if (event == Event::key && !keys.empty() && !keys.back().insert(parsed.get<std::string>()).second) {
      problem = "has the key '" + printable(parsed.get<std::string>()) + "' twice";
    }
    return problem.empty();
  };
  nlohmann::json header = nlohmann::json::parse(text, callback, /*allow_exceptions=*/false);
  if (!problem.empty()) return fail(StatusCode::kDataLoss, problem);
  if (header.is_discarded()) return fail(StatusCode::kDataLoss, "is not valid JSON");
  if (!header.is_object()) return fail(StatusCode::kDataLoss, "is not a JSON object");
  return header;
}

// Elements of `shape`, or nothing when a dimension is no size or the product does not fit 63 bits.
std::optional<uint64_t> read_shape(const nlohmann::json& shape, std::vector<int64_t>* out) {
  if (!shape.is_array() || shape.size() > kMaxDims) return std::nullopt;
  uint64_t elements = 1;
  for (const nlohmann::json& dim : shape) {
    if (!dim.is_number_unsigned()) return std::nullopt;
    const uint64_t size = dim.get<uint64_t>();
    if (size > INT64_MAX) return std::nullopt;
    if (__builtin_mul_overflow(elements, size, &elements) || elements > INT64_MAX) return std::nullopt;
    out->push_back(static_cast<int64_t>(size));
  }
  return elements;
}

// A half-open range of bytes of the data section.
struct Range {
  uint64_t begin, end;
};

// One entry of the header; view.data is not set yet.
struct Entry {
  TensorView view;
  Range range;
  std::optional<Format> format;
  const char* type_name;
};

Expected<Entry> read_entry(const std::string& name, const nlohmann::json& value, uint64_t data_bytes) {
  const auto bad = [](std::string reason) { return fail(StatusCode::kDataLoss, std::move(reason)); };
  if (name.size() > kMaxNameLength) return bad("the name is too long");
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets")) {
    return bad("the entry needs dtype, shape and data_offsets");
  }
  if (!value["dtype"].is_string()) return bad("dtype is not a string");
  const std::string type_name = value["dtype"].get<std::string>();
  const StoredType* type = find_type(type_name);
  if (!type) return bad("dtype '" + printable(type_name) + "' is unknown");

  Entry entry;
  entry.view.name = name;
  entry.format = type->format;
  entry.type_name = type->name;
  const std::optional<uint64_t> elements = read_shape(value["shape"], &entry.view.shape);
  if (!elements) return bad("the shape is not a list of sizes, or too large");

  const nlohmann::json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return bad("data_offsets is not a pair of offsets");
  }
  entry.range = {offsets[0].get<uint64_t>(), offsets[1].get<uint64_t>()};
  if (entry.range.begin > entry.range.end || entry.range.end > data_bytes) {
    return bad("data_offsets " + std::to_string(entry.range.begin) + ".." + std::to_string(entry.range.end) +
               " lie outside the file's " + std::to_string(data_bytes) + " bytes of data (truncated?)");
  }
  entry.view.bytes = entry.range.end - entry.range.begin;
  uint64_t wanted = 0;
  if (type->bytes > 0 && (__builtin_mul_overflow(*elements, static_cast<uint64_t>(type->bytes), &wanted) ||
                          wanted != entry.view.bytes)) {
    return bad("its shape needs another size than the " + std::to_string(entry.view.bytes) + " bytes of data_offsets");
  }
  return entry;
}

// The tensors must cover the data section: in order, no overlap, no hole, nothing after the last.
Status check_coverage(const std::vector<Entry>& sorted, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const Entry& entry : sorted) {
    if (entry.range.begin != at) {
      return Status(StatusCode::kDataLoss, "tensor " + printable(entry.view.name) + ": starts at " +
                                               std::to_string(entry.range.begin) + ", " +
                                               (entry.range.begin < at ? "overlapping the one before"
                                                                       : "leaving a hole") +
                                               " (that ends at " + std::to_string(at) + ")");
    }
    at = entry.range.end;
  }
  if (at == data_bytes) return Status();
  return Status(StatusCode::kDataLoss, "the file holds " + std::to_string(data_bytes) +
                                           " bytes of data, but its tensors end at " + std::to_string(at));
}

Expected<std::vector<Entry>> read_entries(const nlohmann::json& header, uint64_t data_bytes) {
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return fail(StatusCode::kDataLoss, "__metadata__ is not an object");
      continue;
    }
    Expected<Entry> entry = read_entry(name, value, data_bytes);
    if (!entry) {
      return fail(entry.error().code(), "tensor " + printable(name) + ": " + entry.error().message());
    }
    entries.push_back(std::move(*entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.range.begin, a.range.end) < std::pair(b.range.begin, b.range.end);
  });
  if (Status status = check_coverage(entries, data_bytes); !status.ok()) return fail(status);
  return entries;
}

}  // namespace

bool is_known_buffer(std::string_view name) {
  constexpr std::string_view kSuffixes[] = {"rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached",
                                            "self_attn.masked_bias", "position_ids"};
  return std::any_of(std::begin(kSuffixes), std::end(kSuffixes),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

Expected<std::shared_ptr<SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  Expected<std::shared_ptr<MappedFile>> file = MappedFile::open(path);
  if (!file) return fail(file.error());
  return parse(std::move(*file));
}

Expected<std::shared_ptr<SafetensorsFile>> SafetensorsFile::open_memory(std::span<const std::byte> bytes,
                                                                        const std::string& name) {
  return parse(MappedFile::from_memory(bytes, name));
}

Expected<std::shared_ptr<SafetensorsFile>> SafetensorsFile::parse(std::shared_ptr<MappedFile> file) {
  const std::span<const std::byte> bytes = file->bytes();
  const auto bad = [&](const std::string& reason) {
    return fail(StatusCode::kDataLoss, file->name() + ": " + reason);
  };
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) return bad("too short for a safetensors file");
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return bad("its header claims " + std::to_string(header_bytes) + " bytes, more than the limit of " +
               std::to_string(kMaxSafetensorsHeaderBytes));
  }
  if (header_bytes > bytes.size() - 8) {
    return bad("its header claims " + std::to_string(header_bytes) + " bytes, but the file ends before (truncated?)");
  }
  Expected<nlohmann::json> header =
      parse_header({reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<size_t>(header_bytes)});
  if (!header) return bad("its header " + header.error().message());

  const std::span<const std::byte> data = bytes.subspan(8 + header_bytes);
  Expected<std::vector<Entry>> entries = read_entries(*header, data.size());
  if (!entries) return fail(entries.error().code(), file->name() + ": " + entries.error().message());

  std::shared_ptr<SafetensorsFile> result(new SafetensorsFile);
  for (Entry& entry : *entries) {
    if (is_known_buffer(entry.view.name)) continue;
    if (!entry.format) {
      return fail(StatusCode::kUnsupported, file->name() + ": tensor " + printable(entry.view.name) + ": format " +
                                                entry.type_name +
                                                " is not supported (F32, F16, BF16, F8_E4M3 and U8 are)");
    }
    entry.view.format = *entry.format;
    entry.view.data = data.data() + entry.range.begin;
    result->tensors_.push_back(std::move(entry.view));
  }
  result->file_ = std::move(file);
  return result;
}

}  // namespace tailrace
