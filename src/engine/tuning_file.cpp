#include "engine/tuning_file.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "weights/json_file.h"

namespace tailrace {
namespace {

using nlohmann::json;

template <typename T>
struct Field {
  const char* key;
  int32_t T::*member;
  int32_t least, most;
};
constexpr Field<DecodeTuning> kDecode[] = {{"chunks_per_cta", &DecodeTuning::chunks_per_cta, 1, 8},
                                           {"plenty_tiles", &DecodeTuning::plenty_tiles, 1, 1 << 16}};
constexpr Field<MixedTuning> kMixed[] = {{"decode_ctas", &MixedTuning::decode_ctas, 1, 1 << 16},
                                         {"chunks_per_cta", &MixedTuning::chunks_per_cta, 1, 8},
                                         {"beside_tiles", &MixedTuning::beside_tiles, 0, 1 << 30}};

// Reads a file into a table; remembers the first thing wrong.
class Reader {
 public:
  Reader(const std::string& path, const json& root) : path_(path), root_(root) {}

  Expected<TuningTable> read() {
    TuningTable table;
    table.source = path_;
    for (const auto& [key, value] : root_.items()) {
      if (key == "measured_on") {
        if (!value.is_string()) wrong(key, "not a string");
        if (value.is_string()) table.source += ", measured on " + value.get<std::string>();
      } else if (key != "gpu" && key != "decode" && key != "mixed") {
        wrong(key, "unknown key");
      }
    }
    read_kernel("decode", kDecode, table.decode);
    read_kernel("mixed", kMixed, table.mixed);
    if (!error_.empty()) return fail(StatusCode::kDataLoss, error_);
    return table;
  }

 private:
  void wrong(const std::string& where, const std::string& why) {
    if (error_.empty()) error_ = path_ + ": " + where + ": " + why;
  }

  int32_t integer(const json& entry, const std::string& where, const char* key, int64_t least, int64_t most) {
    const auto at = entry.find(key);
    const std::string name = where + "." + key;
    if (at == entry.end()) return wrong(name, "missing"), 0;
    if (!at->is_number_integer()) return wrong(name, "not a whole number"), 0;
    const bool huge = at->is_number_unsigned() && at->get<uint64_t>() > static_cast<uint64_t>(most);
    if (huge || at->get<int64_t>() < least || at->get<int64_t>() > most) {
      wrong(name, at->dump() + " is not within " + std::to_string(least) + ".." + std::to_string(most));
      return 0;
    }
    return at->get<int32_t>();
  }

  TuningKey key_of(const json& entry, const std::string& where) {
    TuningKey key;
    key.head_dim = integer(entry, where, "head_dim", 1, 512);
    if (key.head_dim != 64 && key.head_dim != 128 && key.head_dim != 256 && key.head_dim != 512) {
      wrong(where + ".head_dim", "no kernel of that: 64, 128, 256 or 512");
    }
    key.group = integer(entry, where, "group", 1, 16);
    if (key.group != 8 && key.group != 16) wrong(where + ".group", "no kernel of that: 8 or 16 query heads a KV head");
    if (key.head_dim == 512 && key.group == 16) wrong(where + ".group", "no kernel of that at head_dim 512");
    const auto window = entry.find("window");
    if (window == entry.end() || !window->is_boolean()) return wrong(where + ".window", "true or false is missing"), key;
    key.window = window->get<bool>();
    return key;
  }

  template <typename T, size_t N>
  void read_kernel(const char* kernel, const Field<T> (&fields)[N], TuningEntries<T>& out) {
    const auto list = root_.find(kernel);
    if (list == root_.end()) return;
    if (!list->is_array()) return wrong(kernel, "not a list");
    for (size_t i = 0; i < list->size(); ++i) {
      const json& entry = (*list)[i];
      const std::string where = std::string(kernel) + "[" + std::to_string(i) + "]";
      if (!entry.is_object()) return wrong(where, "not an object");
      for (const auto& [key, value] : entry.items()) {
        const bool known = key == "head_dim" || key == "group" || key == "window" ||
                           std::any_of(fields, fields + N, [&](const Field<T>& f) { return key == f.key; });
        if (!known) wrong(where + "." + key, "unknown key");
      }
      const TuningKey key = key_of(entry, where);
      T value{};
      for (const Field<T>& f : fields) value.*f.member = integer(entry, where, f.key, f.least, f.most);
      const bool twice = std::any_of(out.begin(), out.end(), [&](const auto& e) { return e.first == key; });
      if (twice) wrong(where, "the shape is there already");
      out.emplace_back(key, value);
    }
  }

  const std::string& path_;
  const json& root_;
  std::string error_;
};

template <typename T, size_t N>
nlohmann::ordered_json entries_json(const TuningEntries<T>& entries, const Field<T> (&fields)[N]) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& [key, value] : entries) {
    nlohmann::ordered_json entry = {{"head_dim", key.head_dim}, {"group", key.group}, {"window", key.window}};
    for (const Field<T>& f : fields) entry[f.key] = value.*f.member;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

std::string tuning_file_name(const std::string& gpu_name) {
  std::string name;
  for (const char c : gpu_name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte)) {
      name += static_cast<char>(std::tolower(byte));
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  return name + ".json";
}

Expected<TuningTable> read_tuning_file(const std::string& path) {
  auto root = read_json_file(path);
  if (!root) return fail(root.error());
  return Reader(path, *root).read();
}

Expected<TuningTable> find_tuning(const std::string& gpu_name) {
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& base : {folder, folder.parent_path()}) {
    const auto path = base / "configs" / "tuning" / tuning_file_name(gpu_name);
    if (std::filesystem::exists(path, error)) return read_tuning_file(path.string());
  }
  TuningTable none;
  none.source = "built-in defaults; there is no configs/tuning/" + tuning_file_name(gpu_name) +
                " (tailrace tune writes one)";
  return none;
}

Status write_tuning_file(const std::string& path, const std::string& gpu_name, const TuningTable& table) {
  std::ofstream file(path);
  // One entry a line: tables are read and compared by people.
  file << "{\n  \"gpu\": " << json(gpu_name).dump();
  const auto write = [&](const char* kernel, const nlohmann::ordered_json& entries) {
    file << ",\n  \"" << kernel << "\": [";
    for (size_t i = 0; i < entries.size(); ++i) file << (i > 0 ? ",\n    " : "\n    ") << entries[i].dump();
    file << "\n  ]";
  };
  write("decode", entries_json(table.decode, kDecode));
  write("mixed", entries_json(table.mixed, kMixed));
  file << "\n}\n";
  file.close();
  return file ? Status() : Status(StatusCode::kInternal, path + ": cannot be written");
}

}  // namespace tailrace
