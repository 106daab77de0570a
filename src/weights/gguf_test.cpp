#include "weights/gguf.h"

#include <gtest/gtest.h>

#include <functional>

#include "gguf_writer.h"

namespace tailrace {
namespace {

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

GgufWriter small_file() {
  GgufWriter writer;
  writer.string("general.architecture", "llama");
  writer.u32("count", 7);
  writer.i32("negative", -3);
  writer.f32("ratio", 0.5f);
  writer.boolean("flag", true);
  writer.strings("words", {"a", "", "long enough to leave the small buffer"});
  writer.i32s("numbers", {1, -2, 3});
  writer.f32s("floats", {0.25f, -1.0f});
  writer.tensor("a", Format::kF32, {2, 3}, std::string(24, '\1'));
  writer.tensor("b", Format::kQ8_0, {2, 64}, std::string(2 * 68, '\2'));
  writer.tensor("c", Format::kBF16, {5}, std::string(10, '\3'));
  return writer;
}

// Opens `bytes` and expects a failure whose one-line message names the file and contains `words`.
void expect_rejected(const std::string& bytes, const std::string& words, StatusCode code = StatusCode::kDataLoss) {
  const auto file = GgufFile::open_memory(as_bytes(bytes), "broken.gguf");
  ASSERT_FALSE(file.has_value()) << words;
  EXPECT_EQ(file.error().code(), code) << file.error().message();
  EXPECT_EQ(file.error().message().find("broken.gguf: "), 0u) << file.error().message();
  EXPECT_NE(file.error().message().find(words), std::string::npos) << file.error().message();
  EXPECT_EQ(file.error().message().find('\n'), std::string::npos);
}

void expect_rejected(const std::function<void(GgufWriter&)>& change, const std::string& words,
                     StatusCode code = StatusCode::kDataLoss) {
  GgufWriter writer = small_file();
  change(writer);
  expect_rejected(writer.bytes(), words, code);
}

TEST(Gguf, reads_metadata_by_type) {
  const std::string bytes = small_file().bytes();
  const auto file = GgufFile::open_memory(as_bytes(bytes), "small.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  const GgufFile& gguf = **file;
  EXPECT_EQ(gguf.version(), 3u);
  EXPECT_TRUE(gguf.has("count"));
  EXPECT_FALSE(gguf.has("coun"));
  EXPECT_EQ(gguf.keys().size(), 8u);
  EXPECT_EQ(*gguf.get_u64("count"), 7u);
  EXPECT_EQ(*gguf.get_i64("negative"), -3);
  EXPECT_EQ(*gguf.get_f64("ratio"), 0.5);
  EXPECT_EQ(*gguf.get_f64("count"), 7.0);
  EXPECT_TRUE(*gguf.get_bool("flag"));
  EXPECT_EQ(*gguf.get_string("general.architecture"), "llama");
  EXPECT_EQ(*gguf.get_strings("words"),
            (std::vector<std::string>{"a", "", "long enough to leave the small buffer"}));
  EXPECT_EQ(*gguf.get_ints("numbers"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(*gguf.get_floats("floats"), (std::vector<float>{0.25f, -1.0f}));
}

TEST(Gguf, says_what_is_absent_and_what_has_another_type) {
  const std::string bytes = small_file().bytes();
  const auto file = GgufFile::open_memory(as_bytes(bytes), "small.gguf");
  ASSERT_TRUE(file.has_value());
  const GgufFile& gguf = **file;
  EXPECT_EQ(gguf.get_u64("absent").error().code(), StatusCode::kNotFound);
  EXPECT_EQ(*gguf.get_u64_or("absent", 9), 9u);
  EXPECT_EQ(*gguf.get_string_or("absent", "x"), "x");
  EXPECT_EQ(gguf.get_u64("negative").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(gguf.get_u64("ratio").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(gguf.get_u64("flag").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(gguf.get_u64("numbers").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(gguf.get_u64_or("words", 1).error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(gguf.get_string("words").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(gguf.get_strings("general.architecture").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(gguf.get_ints("floats").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(gguf.get_floats("numbers").error().code(), StatusCode::kDataLoss);
  EXPECT_NE(gguf.get_bool("count").error().message().find("small.gguf: the key count"), std::string::npos);
}

TEST(Gguf, places_tensors_outermost_dimension_first) {
  const std::string bytes = small_file().bytes();
  const auto file = GgufFile::open_memory(as_bytes(bytes), "small.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  const std::vector<TensorView>& tensors = (*file)->tensors();
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].format, Format::kQ8_0);
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{2, 64}));
  EXPECT_EQ(tensors[1].bytes, 136u);
  for (const TensorView& tensor : tensors) {
    EXPECT_EQ(static_cast<int>(tensor.data[0]), tensor.name[0] - 'a' + 1);
    EXPECT_EQ(static_cast<int>(tensor.data[tensor.bytes - 1]), tensor.name[0] - 'a' + 1);
  }
}

TEST(Gguf, reads_version_2_and_other_alignments) {
  GgufWriter writer = small_file();
  writer.version = 2;
  writer.alignment = 64;
  writer.u32("general.alignment", 64);
  const std::string bytes = writer.bytes();
  EXPECT_TRUE(GgufFile::open_memory(as_bytes(bytes), "small.gguf").has_value());
}

TEST(Gguf, rejects_every_truncation) {
  const std::string bytes = small_file().bytes();
  const size_t data_end = bytes.size() - 22;  // the last tensor's padding may be absent
  for (size_t size = 1; size < data_end; ++size) {
    const std::string cut = bytes.substr(0, size);
    EXPECT_FALSE(GgufFile::open_memory(as_bytes(cut), "cut.gguf").has_value()) << size;
  }
  const std::string unpadded = bytes.substr(0, data_end);
  EXPECT_TRUE(GgufFile::open_memory(as_bytes(unpadded), "cut.gguf").has_value());
  expect_rejected(bytes + "x", "after its last tensor");
}

TEST(Gguf, survives_any_changed_byte) {
  const std::string bytes = small_file().bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int change : {1, 0x80, 0xff}) {
      std::string broken = bytes;
      broken[i] = static_cast<char>(broken[i] ^ change);
      const auto file = GgufFile::open_memory(as_bytes(broken), "broken.gguf");
      if (!file) continue;
      for (const TensorView& tensor : (*file)->tensors()) {  // whatever was accepted lies within the file
        EXPECT_GE(reinterpret_cast<const char*>(tensor.data), broken.data());
        EXPECT_LE(reinterpret_cast<const char*>(tensor.data) + tensor.bytes, broken.data() + broken.size());
      }
    }
  }
}

TEST(Gguf, rejects_other_files) {
  expect_rejected("", "not a GGUF file");
  expect_rejected("GGML and more bytes", "not a GGUF file");
  GgufWriter writer = small_file();
  writer.version = 1;
  expect_rejected(writer.bytes(), "version 1", StatusCode::kUnsupported);
  writer.version = 3u << 24;
  expect_rejected(writer.bytes(), "big-endian", StatusCode::kUnsupported);
}

TEST(Gguf, rejects_counts_beyond_the_file) {
  expect_rejected([](GgufWriter& w) { w.num_tensors = uint64_t{1} << 60; }, "more than the file can hold");
  expect_rejected([](GgufWriter& w) { w.num_entries = ~uint64_t{0}; }, "more than the file can hold");
  const std::string huge_strings("\x08\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f", 12);
  expect_rejected([&](GgufWriter& w) { w.raw("k", 9, huge_strings); }, "metadata key k reaches past the end");
  const std::string huge_numbers("\x06\0\0\0\xff\xff\xff\xff\xff\xff\xff\x3f", 12);
  expect_rejected([&](GgufWriter& w) { w.raw("k", 9, huge_numbers); }, "metadata key k reaches past the end");
  const std::string huge_string("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  expect_rejected([&](GgufWriter& w) { w.raw("k", 8, huge_string); }, "metadata key k reaches past the end");
}

TEST(Gguf, rejects_metadata_it_cannot_read) {
  expect_rejected([](GgufWriter& w) { w.u32("count", 8); }, "metadata key count appears twice");
  expect_rejected([](GgufWriter& w) { w.raw("k", 13, ""); }, "unknown type 13");
  const std::string nested("\x09\0\0\0\x01\0\0\0\0\0\0\0", 12);
  expect_rejected([&](GgufWriter& w) { w.raw("k", 9, nested); }, "array of arrays", StatusCode::kUnsupported);
  for (const uint32_t alignment : {0u, 1u, 24u, 1u << 20}) {
    expect_rejected([&](GgufWriter& w) { w.u32("general.alignment", alignment); }, "general.alignment");
  }
  expect_rejected([](GgufWriter& w) { w.string("general.alignment", "32"); }, "general.alignment");
}

TEST(Gguf, rejects_tensors_it_cannot_place) {
  expect_rejected([](GgufWriter& w) { w.tensors[2].name = "a"; }, "tensor a: appears twice");
  expect_rejected([](GgufWriter& w) { w.tensors[2].name = "x\ny"; w.tensors[2].type = 77; },
                  "tensor x?y: type number 77 is unknown", StatusCode::kUnsupported);
  expect_rejected([](GgufWriter& w) { w.tensors[1].type = 20; }, "tensor b: type IQ4_NL is not supported",
                  StatusCode::kUnsupported);
  expect_rejected([](GgufWriter& w) { w.tensors[1].dims = {63, 2}; }, "tensor b: its rows of 63 elements");
  expect_rejected([](GgufWriter& w) { w.tensors[0].dims = {1, 1, 1, 1, 6}; }, "tensor a: 5 dimensions");
  expect_rejected([](GgufWriter& w) { w.tensors[0].dims = {uint64_t{1} << 32, uint64_t{1} << 32}; },
                  "tensor a: its shape is too large");
  expect_rejected([](GgufWriter& w) { w.tensors[0].dims = {~uint64_t{0}}; }, "tensor a: its shape is too large");
  expect_rejected([](GgufWriter& w) { w.tensors[0].dims = {3, 1'000'000}; }, "reach past the end of the file");
  expect_rejected([](GgufWriter& w) { w.tensors[1].offset = 33; }, "tensor b: its offset is not a multiple");
  expect_rejected([](GgufWriter& w) { w.tensors[1].offset = 0; }, "overlapping the one before");
  expect_rejected([](GgufWriter& w) { w.tensors[1].dims = {64, 1}; }, "tensor c: starts at 192, leaving a hole");
  expect_rejected([](GgufWriter& w) { w.tensors[2].offset = ~uint64_t{31}; }, "tensor c: 10 bytes at offset");
}

}  // namespace
}  // namespace tailrace
