#include "weights/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

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

TEST_F(MappedFileTest, maps_and_gives_pages_back) {
  const auto file = MappedFile::open(path_);
  ASSERT_TRUE(file.has_value()) << file.error().message();
  const auto bytes = (*file)->bytes();
  ASSERT_EQ(bytes.size(), kSize);
  EXPECT_TRUE((*file)->contains(bytes.data() + kSize - 1));
  EXPECT_FALSE((*file)->contains(bytes.data() + kSize));
  EXPECT_TRUE((*file)->check_size().ok());
  (*file)->read_ahead(bytes.data() + 5000, 20000);
  EXPECT_EQ(bytes[5000], std::byte{'x'});
  (*file)->release(bytes.data() + 5000, 20000);
  EXPECT_EQ(bytes[5000], std::byte{'x'});  // read again from the file
}

// Pages of this process that are in memory.
int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST_F(MappedFileTest, released_pages_do_not_count_as_resident) {
  constexpr int64_t kLarge = 64 << 20;
  std::filesystem::resize_file(path_, kLarge);
  const auto file = MappedFile::open(path_);
  ASSERT_TRUE(file.has_value());
  const auto bytes = (*file)->bytes();
  const int64_t before = resident_bytes();
  int sum = 0;
  for (int64_t i = 0; i < kLarge; i += 4096) sum += static_cast<int>(bytes[i]);
  EXPECT_GT(sum, 0);
  EXPECT_GT(resident_bytes(), before + kLarge / 2);
  (*file)->release(bytes.data(), bytes.size());
  EXPECT_LT(resident_bytes(), before + kLarge / 4);
}

TEST_F(MappedFileTest, names_what_it_cannot_open) {
  EXPECT_EQ(MappedFile::open(path_ + ".absent").error().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::open("/dev/null").error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::open(std::filesystem::temp_directory_path()).error().code(), StatusCode::kInvalidArgument);
  std::filesystem::resize_file(path_, 0);
  EXPECT_EQ(MappedFile::open(path_).error().code(), StatusCode::kDataLoss);
}

TEST_F(MappedFileTest, check_size_finds_a_later_truncation) {
  const auto file = MappedFile::open(path_);
  ASSERT_TRUE(file.has_value());
  std::filesystem::resize_file(path_, 100);
  const Status status = (*file)->check_size();
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
