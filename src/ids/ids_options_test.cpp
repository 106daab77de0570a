#include "ids/ids_options.h"

#include <gtest/gtest.h>

#include "ids/bench_decode.h"

namespace tailrace {
namespace {

// The message that refuses the flags, or "".
std::string refused(std::vector<std::string> flags) {
  flags.insert(flags.begin(), "tailrace_ids");
  std::vector<char*> argv;
  for (std::string& flag : flags) argv.push_back(flag.data());
  const auto options = parse_ids_options(static_cast<int>(argv.size()), argv.data());
  return options ? "" : options.error().message();
}

std::string refused_on_cpu(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--model", "m", "--device", "cpu"});
  return refused(std::move(flags));
}

TEST(IdsOptions, flags_that_a_mode_would_not_look_at_are_refused) {
  EXPECT_EQ(refused_on_cpu({"--compare", "--prompt-file", "p", "--tolerance", "0.2"}), "");
  EXPECT_EQ(refused_on_cpu({"--compare", "--concurrency", "3"}),
            "--concurrency has no effect on --compare: leave it out");
  EXPECT_EQ(refused_on_cpu({"--contracts", "--prompt-file", "p"}),
            "--prompt-file has no effect on --contracts: leave it out");
  EXPECT_EQ(refused_on_cpu({"--idle-table", "--arrivals", "3"}),
            "--arrivals has no effect on --idle-table: leave it out");
  EXPECT_EQ(refused_on_cpu({"--reference", "cpu"}), "--reference has no effect on a plain run: leave it out");
  EXPECT_EQ(refused_on_cpu({"--tolerance", "0.2"}), "--tolerance has no effect on a plain run: leave it out");
  EXPECT_EQ(refused({"--tune", "--seed", "2"}), "--seed has no effect on --tune: leave it out");
  EXPECT_EQ(refused({"--tune", "--model", "m", "--out", "o"}), "");
}

TEST(IdsOptions, values_without_meaning_are_refused) {
  EXPECT_EQ(refused_on_cpu({"--gpu", "7"}), "--gpu: no GPU is used");
  EXPECT_NE(refused_on_cpu({"--mem-fraction-static", "nan"}), "");
  EXPECT_NE(refused_on_cpu({"--cuda-graph-max-bs", "128"}), "");
  EXPECT_EQ(refused_on_cpu({"--compare", "--reference", "cpu"}), "");
  EXPECT_EQ(refused_on_cpu({"--compare", "--kv-cache-dtype", "fp8"}), "");
  EXPECT_EQ(refused_on_cpu({"--kv-cache-dtype", "int8"}),
            "--kv-cache-dtype: must be auto|bf16|fp8, not int8 (tailrace_ids --help)");
  EXPECT_EQ(refused_on_cpu({"--compare", "--dummy", "--reference", "cpu"}),
            "--reference cpu: --dummy draws other weights on a GPU than on the CPU");
}

TEST(IdsOptions, the_decode_benchmark_takes_its_own_flags) {
  EXPECT_EQ(refused_on_cpu({"--bench-decode", "1k,8k", "--batch", "1,8", "--output-len", "32", "--dummy"}), "");
  EXPECT_EQ(refused_on_cpu({"--batch", "8"}), "--batch has no effect on a plain run: leave it out");
  EXPECT_EQ(refused_on_cpu({"--bench-decode", "1k", "--prompts", "3"}), "--prompts has no effect on --bench-decode: leave it out");
  EXPECT_NE(refused_on_cpu({"--bench-decode", "1k", "--compare"}), "");
}

TEST(IdsOptions, counts_may_be_in_k) {
  const auto counts = parse_counts("1k,300,2K");
  ASSERT_TRUE(counts);
  EXPECT_EQ(*counts, (std::vector<int32_t>{1024, 300, 2048}));
  for (const char* wrong : {"", "1k,", "0", "-1", "k", "1m", "1kk", "99999999k", "16777217", " 1"}) EXPECT_FALSE(parse_counts(wrong)) << wrong;
}

TEST(IdsOptions, a_comparison_has_more_than_one_prompt) {
  std::string flags[] = {"tailrace_ids", "--model", "m", "--device", "cpu", "--compare"};
  char* argv[6];
  for (int i = 0; i < 6; ++i) argv[i] = flags[i].data();
  const auto options = parse_ids_options(6, argv);
  ASSERT_TRUE(options && *options);
  EXPECT_EQ((*options)->prompts, 8);
}

}  // namespace
}  // namespace tailrace
