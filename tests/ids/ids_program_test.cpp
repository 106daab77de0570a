// tailrace_ids on a golden checkpoint: its answers, its device choice, its exit codes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace tailrace {
namespace {

const std::string kGoldens = TAILRACE_SOURCE_DIR "/tests/goldens/";

struct Output {
  int exit_code = -1;
  std::string text;  // stdout and stderr
};

Output run(const std::string& arguments) {
  Output output;
  FILE* pipe = popen((std::string(TAILRACE_IDS) + " " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) output.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

bool mentions(const Output& output, const std::string& text) { return output.text.find(text) != std::string::npos; }

const std::string kModel = "--model " + kGoldens + "gguf_llama/model.gguf --max-total-tokens 4096";

TEST(IdsProgram, cuda_without_a_gpu_says_why_and_auto_runs_on_the_cpu) {
  const Output cuda = run(kModel + " --device cuda --output-len 2");
  if (cuda.exit_code == 0) GTEST_SKIP() << "this machine has a GPU: " << cuda.text;
  EXPECT_EQ(cuda.exit_code, 2);
  const std::string prefix = "tailrace_ids: --device cuda: ";
  ASSERT_EQ(cuda.text.rfind(prefix, 0), 0u) << cuda.text;
  const std::string reason = cuda.text.substr(prefix.size(), cuda.text.find('\n') - prefix.size());
  EXPECT_GT(reason.size(), 20u);
  EXPECT_EQ(std::count(cuda.text.begin(), cuda.text.end(), '\n'), 1) << cuda.text;

  const Output automatic = run(kModel + " --device auto --output-len 2");
  EXPECT_EQ(automatic.exit_code, 0) << automatic.text;
  EXPECT_TRUE(mentions(automatic, "device            CPU")) << automatic.text;
  EXPECT_TRUE(mentions(automatic, "no GPU: " + reason + "\n")) << automatic.text;
}

TEST(IdsProgram, a_decode_table_with_a_line_that_was_not_measured_is_no_success) {
  const std::string bench = kModel + " --device cpu --bench-decode 100k,64 --output-len 8 --batch ";
  const Output one = run(bench + "1");
  EXPECT_EQ(one.exit_code, 0) << one.text;
  EXPECT_TRUE(mentions(one, "context 102400: the model holds ")) << one.text;
  EXPECT_FALSE(mentions(one, " of 8 |")) << one.text;  // it has no experts
  const Output more_than_fit = run("--model " + kGoldens + "gguf_llama/model.gguf --max-total-tokens 256 --device cpu "
                                   "--bench-decode 200 --output-len 8 --batch 4");
  EXPECT_NE(more_than_fit.exit_code, 0) << more_than_fit.text;
  EXPECT_TRUE(mentions(more_than_fit, "1 of the table's lines could not be measured")) << more_than_fit.text;
}

TEST(IdsProgram, a_decode_table_says_how_many_experts_a_step_read) {
  const Output few = run("--model " + kGoldens + "gpt_oss --device cpu --max-total-tokens 4096 --bench-decode 64 "
                         "--output-len 24 --batch 1,3");
  EXPECT_EQ(few.exit_code, 0) << few.text;
  EXPECT_TRUE(mentions(few, "| 2.0 (2.0) of 8 |")) << few.text;
  EXPECT_TRUE(mentions(few, " (4.6) of 8 |")) << few.text;
  EXPECT_FALSE(mentions(few, "not counted")) << few.text;
}

TEST(IdsProgram, a_bad_command_line_is_one_line_and_2) {
  for (const char* arguments : {"", "--model /no/such/model --device cpu", "--frobnicate"}) {
    const Output output = run(arguments);
    EXPECT_EQ(output.exit_code, 2) << arguments;
    EXPECT_EQ(std::count(output.text.begin(), output.text.end(), '\n'), 1) << output.text;
  }
  EXPECT_EQ(run(kModel + " --device cpu --cuda-graph-max-bs 4").exit_code, 2);
  EXPECT_EQ(run(kModel + " --device cpu --kv-splits many").exit_code, 2);
  EXPECT_EQ(run("--help").exit_code, 0);
}

TEST(IdsProgram, the_same_ids_alone_and_among_others) {
  const std::string flags = kModel + " --device cpu --prompts 3 --prompt-len 20 --output-len 6 --print-ids";
  const Output together = run(flags), alone = run(flags + " --concurrency 1 --overlap off");
  ASSERT_EQ(together.exit_code, 0) << together.text;
  EXPECT_EQ(together.text, alone.text);
  EXPECT_TRUE(mentions(together, "prompt 2: ")) << together.text;
}

TEST(IdsProgram, stats_and_compare) {
  const Output stats = run(kModel + " --device cpu --prompts 4 --prompt-len 30 --output-len 20 --arrivals 2 --stats");
  EXPECT_EQ(stats.exit_code, 0) << stats.text;
  EXPECT_TRUE(mentions(stats, "4 of 4 finished, 120 prompt tokens, 80 output tokens")) << stats.text;
  EXPECT_TRUE(mentions(stats, "0 host blocks, 0 allocations")) << stats.text;
  const Output compare = run(kModel + " --device cpu --prompts 6 --prompt-len 60 --output-len 20 --compare");
  EXPECT_EQ(compare.exit_code, 0) << compare.text;
  for (const char* path : {"batched", "mixed", "small chunks", "overlap off", "mixed off", "cached (again)", "cached (edges)", "preempted"}) {
    EXPECT_TRUE(mentions(compare, path)) << compare.text;
  }
  EXPECT_FALSE(mentions(compare, "DIFFERENT")) << compare.text;
}

TEST(IdsProgram, contracts_hold_and_fail_where_staging_blocks) {
  const std::string flags = kModel + " --device cpu --prompts 3 --prompt-len 20 --contracts --contract-steps 256";
  const Output kept = run(flags);
  EXPECT_EQ(kept.exit_code, 0) << kept.text;
  EXPECT_FALSE(mentions(kept, "BROKEN")) << kept.text;
  const Output blocking = run(flags + " --debug-staging blocking");
  EXPECT_EQ(blocking.exit_code, 1) << blocking.text;
  EXPECT_TRUE(mentions(blocking, "BROKEN: ")) << blocking.text;
  EXPECT_TRUE(mentions(blocking, " host blocks; 2")) << "the slabs, too: " << blocking.text;
  const Output packed = run(flags + " --debug-staging packed");
  EXPECT_EQ(packed.exit_code, 1) << "a slab a step, one in 32 is allowed: " << packed.text;
  EXPECT_EQ(run(flags + " --contract-steps 100000").exit_code, 2);
  EXPECT_EQ(run(flags + " --compare").exit_code, 2);
}

TEST(IdsProgram, every_staging_gives_the_same_ids_and_has_a_row_in_the_idle_table) {
  const std::string flags = kModel + " --device cpu --prompts 3 --prompt-len 20 --output-len 20 --print-ids";
  const Output device = run(flags);
  ASSERT_EQ(device.exit_code, 0) << device.text;
  const Output table = run(kModel + " --device cpu --prompt-len 20 --idle-table");
  EXPECT_EQ(table.exit_code, 0) << table.text;
  for (const char* staging : {"device", "packed", "pinned", "blocking"}) {
    EXPECT_EQ(run(flags + " --debug-staging " + staging).text, device.text);
    EXPECT_TRUE(mentions(table, "| " + std::string(staging) + " | ")) << table.text;
  }
  EXPECT_EQ(run(kModel + " --device cpu --idle-table --debug-staging packed").exit_code, 2);
}

// What Perfetto and chrome://tracing need to open a file, and what makes its lanes readable.
TEST(IdsProgram, a_trace_is_valid_and_its_lanes_are_in_order) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("tailrace_ids_trace_" + std::to_string(getpid()));
  const Output output = run(kModel + " --device cpu --prompts 5 --prompt-len 60 --output-len 30 --arrivals 1 --trace " +
                            path.string());
  ASSERT_EQ(output.exit_code, 0) << output.text;
  const auto trace = nlohmann::json::parse(std::ifstream(path), nullptr, false);
  std::filesystem::remove(path);
  ASSERT_FALSE(trace.is_discarded());
  std::map<std::pair<int, int>, std::string> lane_names;
  std::map<std::pair<int, int>, double> lane_ends;
  std::map<std::string, int> steps;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") {
      if (event.at("name") != "thread_name") continue;
      lane_names[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
      continue;
    }
    ASSERT_EQ(event.at("ph"), "X");
    const std::pair<int, int> lane(event.at("pid"), event.at("tid"));
    const double begin = event.at("ts"), length = event.at("dur");
    EXPECT_TRUE(lane_names.count(lane)) << event;
    EXPECT_GE(begin, lane_ends[lane]) << "a lane's events overlap: " << event;
    EXPECT_GE(length, 0);
    lane_ends[lane] = begin + length - 0.002;  // times are printed in whole ns
    if (lane.first == 2) steps[event.at("name")]++;
  }
  EXPECT_EQ(lane_names, (std::map<std::pair<int, int>, std::string>{
                            {{1, 1}, "plan"}, {{1, 2}, "launch"}, {{1, 3}, "process"}, {{2, 1}, "steps"}, {{2, 2}, "idle"}}));
  EXPECT_GT(steps["decode"], 0);
  EXPECT_GT(steps["extend"], 0);
  EXPECT_GT(trace.at("traceEvents").size(), 4 * 30u);
}

TEST(IdsProgram, dummy_weights_need_a_config_only) {
  const Output output =
      run("--model " + kGoldens +
          "qwen3 --dummy --device cpu --max-total-tokens 1024 --prompt-len 20 --output-len 3 --print-ids");
  EXPECT_EQ(output.exit_code, 0) << output.text;
  EXPECT_TRUE(mentions(output, "prompt 0: ")) << output.text;
}

}  // namespace
}  // namespace tailrace
