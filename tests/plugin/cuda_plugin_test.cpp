// The plugin's loader and the engine on what it gives; the plugin is tests/plugin/stand_in_plugin.cpp.
#include "device/cuda_plugin.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "engine/tune.h"
#include "engine/tuning_file.h"
#include "kernels/cuda_abi.h"
#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"

namespace tailrace {
namespace {

TEST(CudaPlugin, one_of_another_build_is_refused) {
  const auto plugin = load_cuda_plugin(cuda_plugin_abi() + 1);
  ASSERT_FALSE(plugin.has_value());
  EXPECT_NE(plugin.error().message().find("another build"), std::string::npos) << plugin.error().message();
}

TEST(CudaPlugin, the_one_beside_the_executable_is_loaded_once) {
  const auto first = load_cuda_plugin(cuda_plugin_abi()), second = load_cuda_plugin(cuda_plugin_abi());
  ASSERT_TRUE(first.has_value()) << first.error().message();
  EXPECT_EQ(*first, *second);
}

TEST(CudaPlugin, auto_takes_the_gpu_and_an_index_beyond_it_is_an_error) {
  EXPECT_EQ(decide_device("auto")->kind, "cuda");
  EXPECT_EQ(decide_device("cuda")->reason, "a stand-in");
  EXPECT_EQ(decide_device("cpu")->kind, "cpu");
  EXPECT_EQ(decide_device("auto", 3)->kind, "cpu");
  EXPECT_EQ(decide_device("auto", 3)->reason, "there is no stand-in 3");
  EXPECT_EQ(decide_device("cuda", 3).error().message(), "there is no stand-in 3");
}

// Seen on a GPU: a thread that the driver had started took the server's SIGTERM, and the process ended undrained.
TEST(CudaPlugin, a_drivers_threads_never_take_a_signal_of_the_process) {
  EXPECT_EQ(decide_device("cuda")->reason, "a stand-in");  // not "a stand-in open to SIGTERM"
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_FALSE(sigismember(&blocked, SIGTERM));
}

TEST(CudaPlugin, the_engine_runs_on_its_device_and_backend) {
  TempDir dir;
  write_random_checkpoint(dir.path(), tiny_llama_config(), 5);
  const std::vector<Request> requests = {greedy_request(random_prompt(1, 40), 12), greedy_request(random_prompt(2, 7), 12)};
  EngineSetup setup = test_setup(dir.path());
  std::vector<Answer> here, there;
  here = TestEngine(setup).run(requests);
  setup.device_kind = "cuda";
  setup.gpu_name = "a stand-in";
  there = TestEngine(setup).run(requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(here[i].ids, there[i].ids);
  setup.device_index = 1;
  RequestQueue queue(1);
  EngineStatus status;
  const auto missing = EngineHost::create(setup, queue, status, nullptr);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().message(), "there is no stand-in 1");
}

TEST(CudaPlugin, tune_writes_what_was_measured) {
  TempDir dir;
  const std::string out = dir.path() + "/table.json";
  ASSERT_TRUE(run_tune({.out = out}).ok());
  const auto table = read_tuning_file(out);
  ASSERT_TRUE(table.has_value()) << table.error().message();
  EXPECT_EQ(table->mixed, (TuningEntries<MixedTuning>{{{64, 8, false}, {7, 2, 70}}}));
  write_random_checkpoint(dir.path(), tiny_gemma3_config(), 5);  // its shapes instead
  ASSERT_TRUE(run_tune({.model = dir.path(), .out = out}).ok());
  EXPECT_NE(read_tuning_file(out)->mixed, table->mixed);
  EXPECT_EQ(run_tune({.device_index = 1, .out = out}).message(), "there is no stand-in 1");
  EXPECT_NE(run_tune({.model = dir.path() + "/missing", .out = out}).message(), "");
  EXPECT_NE(run_tune({.out = dir.path() + "/no/such/folder"}).message(), "");
}

// The table of the GPU's name beside the executable is read at start; a broken one is an error, not ignored. The name is the
// one that the device was decided on by: the GPU is not asked again.
TEST(CudaPlugin, a_broken_tuning_table_keeps_the_engine_from_starting) {
  TempDir dir;
  write_random_checkpoint(dir.path(), tiny_llama_config(), 5);
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "configs" / "tuning";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "renamed-stand-in.json").string();
  std::ofstream(path) << R"({"decode": [{"head_dim": 64, "group": 8, "window": false, "chunks_per_cta": 99, "plenty_tiles": 8}]})";
  EngineSetup setup = test_setup(dir.path());
  setup.device_kind = "cuda";
  setup.gpu_name = "Renamed stand-in";
  RequestQueue queue(1);
  EngineStatus status;
  const auto host = EngineHost::create(setup, queue, status, nullptr);
  const auto report = inspect_model(setup);
  std::filesystem::remove(path);
  ASSERT_FALSE(host.has_value());
  EXPECT_EQ(host.error().message(), path + ": decode[0].chunks_per_cta: 99 is not within 1..8");
  EXPECT_FALSE(report.has_value());
  EXPECT_TRUE(inspect_model(setup).has_value());
}

}  // namespace
}  // namespace tailrace
