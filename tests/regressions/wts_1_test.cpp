// Case WTS-1: incomplete or odd safetensors files. Each bad one fails before anything is allocated, with one line that
// names file, tensor and reason; odd but whole ones load.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "model/model_tensors.h"
#include "weights/checkpoint.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.exceptions(std::ios::failbit | std::ios::badbit);
  file << bytes;
}

struct File {
  json header;
  std::string data;
};

File split(const std::string& bytes) {
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  return {json::parse(bytes.substr(8, length)), bytes.substr(8 + length)};
}
std::string joined(const std::string& header, const std::string& data, uint64_t claimed_length) {
  return std::string(reinterpret_cast<const char*>(&claimed_length), 8) + header + data;
}
std::string joined(const std::string& header, const std::string& data) { return joined(header, data, header.size()); }

// A copy of the tiny Qwen3 checkpoint for each test, whose weights the test breaks.
class Wts1 : public testing::Test {
 protected:
  Wts1() {
    std::string pattern = (fs::temp_directory_path() / "tailrace-wts-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    const fs::path source = fs::path(TAILRACE_SOURCE_DIR) / "tests/goldens/qwen3";
    fs::copy(source / "config.json", folder_ / "config.json");
    bytes_ = read_file(source / "model.safetensors");
    file_ = split(bytes_);
  }
  ~Wts1() override { fs::remove_all(folder_); }

  void write(const std::string& bytes) { write_file(folder_ / "model.safetensors", bytes); }
  void write(const File& file) { write(joined(file.header.dump(), file.data)); }

  // What `serve` does before it allocates; the names of unused tensors on success.
  Expected<std::vector<std::string>> load() const {
    const auto checkpoint = Checkpoint::open(folder_.string());
    if (!checkpoint) return fail(checkpoint.error());
    const auto config = load_model_config(**checkpoint);
    if (!config) return fail(config.error());
    return check_model_tensors(**checkpoint, *config);
  }
  void expect_loads() const {
    const auto unused = load();
    ASSERT_TRUE(unused.has_value()) << unused.error().message();
    EXPECT_TRUE(unused->empty()) << unused->front();
  }
  void expect_rejected(const std::string& words) const {
    const auto result = load();
    ASSERT_FALSE(result.has_value()) << words;
    EXPECT_EQ(result.error().message().find(folder_.string()), 0u) << result.error().message();
    EXPECT_NE(result.error().message().find(words), std::string::npos) << result.error().message();
    EXPECT_EQ(result.error().message().find('\n'), std::string::npos);
  }

  // Two shards: tensors by parity of their place, and the index.
  void write_shards() {
    File shards[2];
    json weight_map;
    int i = 0;
    for (const auto& [name, entry] : file_.header.items()) {
      File& shard = shards[i % 2];
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      shard.header[name] = entry;
      shard.header[name]["data_offsets"] = {shard.data.size(), shard.data.size() + end - begin};
      shard.data += file_.data.substr(begin, end - begin);
      weight_map[name] = shard_name(i % 2);
      ++i;
    }
    for (int s = 0; s < 2; ++s) write_file(folder_ / shard_name(s), joined(shards[s].header.dump(), shards[s].data));
    write_index(weight_map);
  }
  static std::string shard_name(int s) { return "model-0000" + std::to_string(s + 1) + "-of-00002.safetensors"; }
  void write_index(const json& weight_map) {
    weight_map_ = weight_map;
    write_file(folder_ / "model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
  }

  fs::path folder_;
  std::string bytes_;
  File file_;
  json weight_map_;
};

const std::string kQ = "model.layers.0.self_attn.q_proj.weight";

TEST_F(Wts1, whole_file_loads) {
  write(bytes_);
  expect_loads();
}

TEST_F(Wts1, cut_by_one_byte) {
  write(bytes_.substr(0, bytes_.size() - 1));
  expect_rejected("model.safetensors: tensor ");
}

TEST_F(Wts1, one_byte_too_long) {
  write(bytes_ + "x");
  expect_rejected("bytes of data, but its tensors end at");
}

TEST_F(Wts1, cut_inside_the_header) {
  write(bytes_.substr(0, 100));
  expect_rejected("the file ends before (truncated?)");
  write(bytes_.substr(0, 7));
  expect_rejected("too short");
  write("");
  expect_rejected("the file is empty");
}

TEST_F(Wts1, header_length_of_2_to_63_and_of_200_MB) {
  write(joined(file_.header.dump(), file_.data, uint64_t{1} << 63));
  expect_rejected("its header claims 9223372036854775808 bytes, more than the limit");
  write(joined(file_.header.dump(), file_.data, 200'000'000));
  expect_rejected("its header claims 200000000 bytes, more than the limit");
  write(joined(file_.header.dump(), file_.data, ~uint64_t{0}));
  expect_rejected("more than the limit");
}

TEST_F(Wts1, header_is_no_object) {
  write(joined("[]", ""));
  expect_rejected("its header is not a JSON object");
  write(joined("{\"a\": ", file_.data));
  expect_rejected("its header is not valid JSON");
  write(joined(std::string(50'000, '[') + std::string(50'000, ']'), ""));
  expect_rejected("its header is nested too deeply");
}

TEST_F(Wts1, duplicate_key) {
  std::string header = file_.header.dump();
  header.insert(1, "\"" + kQ + "\":" + file_.header[kQ].dump() + ",");
  write(joined(header, file_.data));
  expect_rejected("its header has the key '" + kQ + "' twice");
}

TEST_F(Wts1, overlapping_tensors_and_holes) {
  File broken = file_;
  json& offsets = broken.header[kQ]["data_offsets"];
  offsets = {offsets[0].get<int64_t>() - 64, offsets[1].get<int64_t>() - 64};
  write(broken);
  expect_rejected("overlapping the one before");
  broken = file_;
  broken.header.erase(kQ);
  write(broken);
  expect_rejected("leaving a hole");
}

TEST_F(Wts1, offsets_outside_the_file_or_reversed) {
  File broken = file_;
  broken.header[kQ]["data_offsets"] = {0, uint64_t{1} << 62};
  write(broken);
  expect_rejected("tensor " + kQ + ": data_offsets 0..4611686018427387904 lie outside the file's");
  broken.header[kQ]["data_offsets"] = {128, 0};
  write(broken);
  expect_rejected("tensor " + kQ + ": data_offsets 128..0 lie outside");
  broken.header[kQ]["data_offsets"] = {-1, 4};
  write(broken);
  expect_rejected("tensor " + kQ + ": data_offsets is not a pair of offsets");
}

TEST_F(Wts1, shapes_that_do_not_fit) {
  File broken = file_;
  for (const json& shape : {json({1e18}), json({-1, 4}), json("4"), json({uint64_t{1} << 33, uint64_t{1} << 33}),
                            json(std::vector<int>(9, 1))}) {
    broken.header[kQ]["shape"] = shape;
    write(broken);
    expect_rejected("tensor " + kQ + ": the shape is not a list of sizes, or too large");
  }
  for (const json& shape : {json({uint64_t{1'000'000'000'000'000'000}}), json({uint64_t{1} << 62}), json({1, 2})}) {
    broken.header[kQ]["shape"] = shape;
    write(broken);
    expect_rejected("tensor " + kQ + ": its shape needs another size than the");
  }
}

TEST_F(Wts1, unknown_and_unsupported_types) {
  File broken = file_;
  broken.header[kQ]["dtype"] = "F13";
  write(broken);
  expect_rejected("tensor " + kQ + ": dtype 'F13' is unknown");
  broken.header[kQ]["dtype"] = "I16";  // the same size as BF16
  write(broken);
  expect_rejected("tensor " + kQ + ": format I16 is not supported (F32, F16, BF16, F8_E4M3 and U8 are)");
}

TEST_F(Wts1, entries_without_their_fields) {
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    File broken = file_;
    broken.header[kQ].erase(key);
    write(broken);
    expect_rejected("tensor " + kQ + ": the entry needs dtype, shape and data_offsets");
  }
}

TEST_F(Wts1, renamed_tensor_is_missing) {
  File broken = file_;
  broken.header["model.layers.0.self_attn.query.weight"] = broken.header[kQ];
  broken.header.erase(kQ);
  write(broken);
  expect_rejected("missing tensors: " + kQ);
}

TEST_F(Wts1, misshapen_tensor) {
  File broken = file_;
  json& shape = broken.header[kQ]["shape"];
  shape = {shape[1], shape[0]};
  write(broken);
  expect_rejected("misshapen tensors: " + kQ + " has the shape [64, 128] instead of [128, 64]");
}

TEST_F(Wts1, extra_tensor_is_named_and_known_buffers_are_not) {
  File extra = file_;
  const size_t end = extra.data.size();
  extra.header["model.layers.0.extra.weight"] = {{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {end, end + 8}}};
  extra.header["model.rotary_emb.inv_freq"] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {end + 8, end + 12}}};
  extra.header["model.position_ids"] = {{"dtype", "I64"}, {"shape", {1}}, {"data_offsets", {end + 12, end + 20}}};
  extra.data += std::string(20, '\0');
  write(extra);
  const auto unused = load();
  ASSERT_TRUE(unused.has_value()) << unused.error().message();
  EXPECT_EQ(*unused, std::vector<std::string>{"model.layers.0.extra.weight"});
}

TEST_F(Wts1, zero_size_tensor_is_well_formed) {
  File odd = file_;
  const size_t end = odd.data.size();
  odd.header["empty"] = {{"dtype", "F32"}, {"shape", {0, 4}}, {"data_offsets", {end, end}}};
  write(odd);
  const auto unused = load();
  ASSERT_TRUE(unused.has_value()) << unused.error().message();
  EXPECT_EQ(*unused, std::vector<std::string>{"empty"});
}

TEST_F(Wts1, header_of_exactly_100000_bytes) {
  std::string header = file_.header.dump();
  header.resize(100'000, ' ');
  write(joined(header, file_.data));
  expect_loads();
}

TEST_F(Wts1, two_shards_load) {
  write_shards();
  expect_loads();
}

TEST_F(Wts1, missing_shard) {
  write_shards();
  fs::remove(folder_ / shard_name(1));
  expect_rejected(shard_name(1));
}

TEST_F(Wts1, cut_shard) {
  write_shards();
  const std::string shard = read_file(folder_ / shard_name(1));
  write_file(folder_ / shard_name(1), shard.substr(0, shard.size() / 2));
  expect_rejected(shard_name(1) + ": tensor ");
}

TEST_F(Wts1, index_names_a_tensor_absent_from_its_file) {
  write_shards();
  json moved = weight_map_;
  moved[kQ] = moved[kQ] == shard_name(0) ? shard_name(1) : shard_name(0);
  write_index(moved);
  expect_rejected(moved[kQ].get<std::string>() + ": tensor " + kQ +
                  ": the index says it is in this file, but it is not");
}

TEST_F(Wts1, tensor_in_both_shards_comes_from_the_one_the_index_names) {
  write_shards();
  const std::string home = weight_map_[kQ];
  const std::string other = home == shard_name(0) ? shard_name(1) : shard_name(0);
  File shard = split(read_file(folder_ / other));
  const size_t bytes = file_.header[kQ]["data_offsets"][1].get<size_t>() -
                       file_.header[kQ]["data_offsets"][0].get<size_t>();
  shard.header[kQ] = file_.header[kQ];
  shard.header[kQ]["data_offsets"] = {shard.data.size(), shard.data.size() + bytes};
  shard.data += std::string(bytes, '\x55');
  write_file(folder_ / other, joined(shard.header.dump(), shard.data));
  expect_loads();
  const auto checkpoint = Checkpoint::open(folder_.string());
  const TensorView* q = (*checkpoint)->find(kQ);
  const std::string expected = file_.data.substr(file_.header[kQ]["data_offsets"][0].get<size_t>(), bytes);
  EXPECT_EQ(std::memcmp(q->data, expected.data(), bytes), 0);
}

TEST_F(Wts1, tensor_in_both_shards_that_the_index_does_not_know) {
  write_shards();
  for (int s = 0; s < 2; ++s) {
    File shard = split(read_file(folder_ / shard_name(s)));
    const size_t end = shard.data.size();
    shard.header["stray"] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {end, end + 4}}};
    write_file(folder_ / shard_name(s), joined(shard.header.dump(), shard.data + "abcd"));
  }
  expect_rejected("tensor stray: appears twice");
}

TEST_F(Wts1, broken_indices) {
  write_shards();
  const fs::path index = folder_ / "model.safetensors.index.json";
  write_file(index, "{\"weight_map\": {}}");
  expect_rejected("weight_map is missing, empty or not an object");
  write_file(index, "{\"weight_map\": {\"a\": \"../../secret.safetensors\"}}");
  expect_rejected("tensor a: '../../secret.safetensors' is not a plain file name");
  write_file(index, "{\"weight_map\": {\"a\": 3}}");
  expect_rejected("tensor a: its file is not a string");
  write_file(index, "{\"weight_map\"");
  expect_rejected("not valid JSON");
}

TEST_F(Wts1, truncated_after_it_was_opened) {
  write(bytes_);
  const auto checkpoint = Checkpoint::open(folder_.string());
  ASSERT_TRUE(checkpoint.has_value());
  const TensorView* q = (*checkpoint)->find(kQ);
  std::vector<std::byte> read(q->bytes);
  EXPECT_TRUE((*checkpoint)->read(*q, read.data()).ok());
  fs::resize_file(folder_ / "model.safetensors", 100);  // before its data
  const Status status = (*checkpoint)->read(*q, read.data());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("model.safetensors: the file was truncated after it was opened"), std::string::npos);
  EXPECT_NE(status.message().find(kQ), std::string::npos);
}

}  // namespace
}  // namespace tailrace
