#include "base/read_whole_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct ReadWholeFile : testing::Test {
  ReadWholeFile() { fs::create_directory(folder); }
  ~ReadWholeFile() override { fs::remove_all(folder); }
  std::string path(const std::string& text) const {
    std::ofstream(folder / "file", std::ios::binary) << text;
    return folder / "file";
  }
  const fs::path folder =
      fs::path(testing::TempDir()) / ("read_whole_file_" + std::to_string(::getpid()));
};

TEST_F(ReadWholeFile, every_byte_comes) {
  std::string text(200'000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 % 256);
  EXPECT_EQ(read_whole_file(path(text), text.size()).value(), text);
  EXPECT_EQ(read_whole_file(path(""), 0).value(), "");
}

TEST_F(ReadWholeFile, a_pipe_is_read_to_its_end) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "abc", 3), 3);
  ::close(ends[1]);
  EXPECT_EQ(read_whole_file("/dev/fd/" + std::to_string(ends[0]), 3).value(), "abc");
  ::close(ends[0]);
}

TEST_F(ReadWholeFile, failures_say_what_they_are) {
  const auto absent = read_whole_file(folder / "no", 10);
  ASSERT_FALSE(absent.has_value());
  EXPECT_EQ(absent.error().code(), StatusCode::kNotFound);
  EXPECT_EQ(absent.error().message(), (folder / "no").string() + ": No such file or directory");
  EXPECT_EQ(read_whole_file(folder, 10).error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(read_whole_file(path("1234"), 3).error().code(), StatusCode::kTooLarge);
  EXPECT_EQ(read_whole_file("/dev/zero", 1000).error().code(), StatusCode::kTooLarge);
}

}  // namespace
}  // namespace tailrace
