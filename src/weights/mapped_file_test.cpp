#include "weights/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/process_memory.h"

namespace tailrace {
namespace {

class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tailrace-map-XXXXXX").string();
    const int fd = mkstemp(pattern.data());
    EXPECT_GE(fd, 0);
    close(fd);
    path_ = pattern;
    std::ofstream(path_) << std::string(kSize, 'x');
  }
  ~MappedFileTest() override { std::filesystem::remove(path_); }

  static constexpr size_t kSize = 64 * 1024;
  std::string path_;
};

TEST_F(MappedFileTest, maps_and_reads) {
  const auto file = MappedFile::open(path_);
  ASSERT_TRUE(file.has_value()) << file.error().message();
  const auto bytes = (*file)->bytes();
  ASSERT_EQ(bytes.size(), kSize);
  EXPECT_TRUE((*file)->contains(bytes.data() + kSize - 1));
  EXPECT_FALSE((*file)->contains(bytes.data() + kSize));
  std::fstream(path_, std::ios::in | std::ios::out).seekp(24999) << 'y';
  std::vector<std::byte> out(20001, std::byte{'z'});
  ASSERT_TRUE((*file)->read(bytes.data() + 5000, 20000, out.data()).ok());
  EXPECT_EQ(std::count(out.begin(), out.end(), std::byte{'x'}), 19999);
  EXPECT_EQ(out[19999], std::byte{'y'});
  EXPECT_EQ(out[20000], std::byte{'z'});
}

// Pages of this process that are in memory.
int64_t resident_bytes() { return read_process_memory().resident_bytes; }

TEST_F(MappedFileTest, what_is_read_does_not_make_the_mapping_resident) {
  constexpr int64_t kLarge = 64 << 20;
  std::filesystem::resize_file(path_, kLarge);
  const auto file = MappedFile::open(path_);
  ASSERT_TRUE(file.has_value());
  const auto bytes = (*file)->bytes();
  const int64_t before = resident_bytes();
  std::vector<std::byte> piece(1 << 20);
  for (int64_t at = 0; at < kLarge; at += piece.size()) {
    ASSERT_TRUE((*file)->read(bytes.data() + at, piece.size(), piece.data()).ok());
  }
  EXPECT_LT(resident_bytes(), before + kLarge / 4);
}

TEST_F(MappedFileTest, names_what_it_cannot_open) {
  EXPECT_EQ(MappedFile::open(path_ + ".absent").error().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::open("/dev/null").error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::open(std::filesystem::temp_directory_path()).error().code(), StatusCode::kInvalidArgument);
  std::filesystem::resize_file(path_, 0);
  EXPECT_EQ(MappedFile::open(path_).error().code(), StatusCode::kDataLoss);
}

TEST_F(MappedFileTest, reading_finds_a_later_truncation) {
  const auto file = MappedFile::open(path_);
  ASSERT_TRUE(file.has_value());
  std::filesystem::resize_file(path_, 100);
  std::vector<std::byte> out(200);
  EXPECT_TRUE((*file)->read((*file)->bytes().data(), 100, out.data()).ok());
  const Status status = (*file)->read((*file)->bytes().data(), 200, out.data());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find(path_ + ": the file was truncated"), std::string::npos) << status.message();
}

using MappedFileDeathTest = MappedFileTest;

// Reads behind the new end: SIGBUS, which must not end the process without a word.
TEST_F(MappedFileDeathTest, truncation_while_reading_ends_with_the_files_name) {
  EXPECT_EXIT(
      {
        const auto file = MappedFile::open(path_);
        std::filesystem::resize_file(path_, 100);
        const volatile std::byte* last = (*file)->bytes().data() + kSize - 1;
        [[maybe_unused]] const std::byte read = *last;
      },
      testing::ExitedWithCode(2), "tailrace-map-.*: the file was truncated");
}

}  // namespace
}  // namespace tailrace
