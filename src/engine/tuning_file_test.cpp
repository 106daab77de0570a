#include "engine/tuning_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace tailrace {
namespace {

class TuningFile : public ::testing::Test {
 protected:
  std::string path_ = ::testing::TempDir() + "/tuning_file_test_" + std::to_string(getpid());
  void TearDown() override { std::remove(path_.c_str()); }
  // The error of a file with this content, "" if none.
  std::string error_of(const std::string& content) {
    std::ofstream(path_) << content;
    const auto table = read_tuning_file(path_);
    if (table) return "";
    EXPECT_EQ(table.error().message().rfind(path_ + ": ", 0), 0u) << table.error().message();
    return table.error().message().substr(path_.size() + 2);
  }
};

TEST_F(TuningFile, what_is_written_is_read_again) {
  TuningTable table;
  table.decode = {{{64, 8, false}, {3, 16}}, {{64, 8, true}, {1, 8}}};
  table.mixed = {{{128, 16, false}, {66, 3, 132}}};
  ASSERT_TRUE(write_tuning_file(path_, "A \"GPU\"", table).ok());
  const auto got = read_tuning_file(path_);
  ASSERT_TRUE(got.has_value()) << got.error().message();
  EXPECT_EQ(got->source, path_);
  EXPECT_EQ(got->decode, table.decode);
  EXPECT_EQ(got->mixed, table.mixed);
  EXPECT_EQ(tuning_for(got->decode, {64, 8, true}, {}), (DecodeTuning{1, 8}));
  EXPECT_EQ(tuning_for(got->decode, {128, 8, true}, {}), DecodeTuning{});
  EXPECT_FALSE(write_tuning_file("/nowhere/at/all.json", "", table).ok());
}

TEST_F(TuningFile, the_name_follows_the_gpu) {
  EXPECT_EQ(tuning_file_name("NVIDIA H200"), "nvidia-h200.json");
  EXPECT_EQ(tuning_file_name("NVIDIA H100 80GB HBM3"), "nvidia-h100-80gb-hbm3.json");
  EXPECT_EQ(tuning_file_name("../../etc/x"), "etc-x.json");
}

TEST_F(TuningFile, an_unknown_gpu_has_the_defaults) {
  const auto table = find_tuning("no such GPU");
  ASSERT_TRUE(table.has_value());
  EXPECT_TRUE(table->decode.empty() && table->mixed.empty());
  EXPECT_NE(table->source.find("no-such-gpu.json"), std::string::npos);
}

TEST_F(TuningFile, a_table_of_another_gpu_says_so) {
  std::ofstream(path_) << R"({"gpu":"A","measured_on":"B","decode":[]})";
  const auto table = read_tuning_file(path_);
  ASSERT_TRUE(table.has_value());
  EXPECT_EQ(table->source, path_ + ", measured on B");
  EXPECT_EQ(error_of(R"({"measured_on":1})"), "measured_on: not a string");
}

TEST_F(TuningFile, errors_name_the_file_the_key_and_the_reason) {
  const std::string shape = R"("head_dim":64,"group":8,"window":false)";
  const auto decode = [&](const std::string& entry) { return error_of("{\"decode\":[{" + entry + "}]}"); };
  const std::string values = R"(,"chunks_per_cta":2,"plenty_tiles":8)";
  EXPECT_EQ(decode(shape + values), "");
  EXPECT_EQ(error_of("{}"), "");
  EXPECT_EQ(error_of("[]"), "not a JSON object");
  EXPECT_EQ(error_of("{\"decod\":[]}"), "decod: unknown key");
  EXPECT_EQ(error_of("{\"mixed\":{}}"), "mixed: not a list");
  EXPECT_EQ(error_of("{\"mixed\":[1]}"), "mixed[0]: not an object");
  EXPECT_EQ(decode(shape + values + ",\"x\":1"), "decode[0].x: unknown key");
  EXPECT_EQ(decode(shape + R"(,"chunks_per_cta":2)"), "decode[0].plenty_tiles: missing");
  EXPECT_EQ(decode(shape + R"(,"chunks_per_cta":0,"plenty_tiles":8)"),
            "decode[0].chunks_per_cta: 0 is not within 1..8");
  EXPECT_EQ(decode(shape + R"(,"chunks_per_cta":18446744073709551615,"plenty_tiles":8)"),
            "decode[0].chunks_per_cta: 18446744073709551615 is not within 1..8");
  EXPECT_EQ(decode(shape + R"(,"chunks_per_cta":1.5,"plenty_tiles":8)"),
            "decode[0].chunks_per_cta: not a whole number");
  EXPECT_EQ(decode(R"("head_dim":80,"group":8,"window":false)" + values), "decode[0].head_dim: no kernel of that: 64, 128, 256 or 512");
  EXPECT_EQ(decode(R"("head_dim":64,"group":7,"window":false)" + values),
            "decode[0].group: no kernel of that: 8 or 16 query heads a KV head");
  EXPECT_EQ(decode(R"("head_dim":512,"group":16,"window":false)" + values), "decode[0].group: no kernel of that at head_dim 512");
  EXPECT_EQ(decode(R"("head_dim":64,"group":8,"window":128)" + values), "decode[0].window: true or false is missing");
  EXPECT_EQ(error_of("{\"decode\":[{" + shape + values + "},{" + shape + values + "}]}"), "decode[1]: the shape is there already");
}

// The shipped tables can be read: a broken one would keep servers from starting.
TEST_F(TuningFile, the_shipped_tables_are_valid) {
  int tables = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TAILRACE_SOURCE_DIR "/configs/tuning")) {
    const auto table = read_tuning_file(entry.path().string());
    EXPECT_TRUE(table.has_value()) << table.error().message();
    ++tables;
  }
  EXPECT_GE(tables, 1);
}

}  // namespace
}  // namespace tailrace
