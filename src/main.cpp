// The tailrace binary: parses the command line and runs one sub-command.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "engine/tune.h"
#include "ids/bench_decode.h"
#include "run.h"
#include "server/chat_client.h"
#include "server/config.h"

extern char** environ;

namespace {

tailrace::Expected<std::string> find_gpu() {
  const auto decision = tailrace::decide_device("cuda");
  if (!decision) return tailrace::fail(decision.error());
  return decision->reason;
}

tailrace::Status run_bench(const tailrace::BenchConfig& config) {
  using namespace tailrace;
  DecodeBench bench;
  const auto contexts = parse_counts(config.contexts), rows = parse_counts(config.batch);
  if (!contexts) return contexts.error();
  if (!rows) return rows.error();
  const auto device = decide_device(config.device, config.gpu);
  if (!device) return device.error();
  bench.setup.model_path = config.model;
  bench.setup.dummy_weights = config.dummy_weights;
  bench.setup.dummy_seed = config.seed;
  bench.setup.requantize_dense = config.requantize_dense;
  bench.setup.kv_format = config.kv_format;
  bench.setup.device_kind = device->kind, bench.setup.device_index = config.gpu;
  if (device->kind == "cuda") bench.setup.gpu_name = device->reason;
  bench.setup.limits = default_limits(device->kind);
  bench.contexts = *contexts, bench.rows = *rows, bench.steps = config.steps, bench.per_op = config.per_op, bench.seed = config.seed;
  return run_bench_decode(bench);
}

}  // namespace

int tailrace::bad_input(const Status& status) {
  std::fprintf(stderr, "tailrace: %s\n", status.message().c_str());
  return kExitBadInput;
}

int main(int argc, char** argv) {
  using namespace tailrace;
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
  const auto command = parse_command_line(std::vector<std::string>(argv + 1, argv + argc), environment,
                                          BuildFacts{.find_gpu = find_gpu, .version = TAILRACE_VERSION});
  if (!command) return bad_input(command.error());
  if (const auto* print = std::get_if<PrintAndExit>(&*command)) {
    std::printf("%s", print->text.c_str());
    return 0;
  }
  if (const auto* inspect = std::get_if<InspectConfig>(&*command)) return run_inspect(*inspect);
  if (const auto* tune = std::get_if<TuneConfig>(&*command)) {
    const Status tuned = run_tune({.device_index = tune->gpu, .model = tune->model, .out = tune->out});
    return tuned.ok() ? 0 : bad_input(tuned);
  }
  if (const auto* bench = std::get_if<BenchConfig>(&*command)) {
    const Status status = run_bench(*bench);
    return status.ok() ? 0 : bad_input(status);
  }
  if (const auto* agent = std::get_if<LaunchConfig>(&*command)) return run_launch(*agent);
  if (const auto* chat = std::get_if<ChatConfig>(&*command)) return run_chat(*chat);
  return run_serve(std::get<ServeConfig>(*command));
}
