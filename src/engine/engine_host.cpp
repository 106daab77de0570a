#include "engine/engine_host.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "base/check.h"
#include "device/cuda_plugin.h"
#include "engine/calibrate.h"
#include "engine/tuning_file.h"
#include "kernels/cuda_abi.h"
#include "model/model_tensors.h"

namespace tailrace {
namespace {

// What computes: the backend's memory is the device's.
struct Machine {
  std::unique_ptr<Device> device;
  std::unique_ptr<Backend> backend;
};

constexpr int kDefaultGraphRows = 64;

// The driver's threads start here, with no signal open to them: a SIGTERM that one of them took would end the process
// before it has drained.
Expected<std::string> probe_gpu(int index) {
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  auto plugin = load_cuda_plugin(cuda_plugin_abi());
  auto gpu = plugin ? (*plugin)->probe({.index = index}) : Expected<std::string>(fail(plugin.error()));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return gpu;
}

Expected<Machine> make_cuda_machine(const EngineSetup& setup, BackendOptions options) {
  CHECK_MSG(!setup.gpu_name.empty(), "a GPU is decided on by its name (decide_device)");
  auto plugin = load_cuda_plugin(cuda_plugin_abi());
  if (!plugin) return fail(plugin.error());
  auto tuning = find_tuning(setup.gpu_name);
  if (!tuning) return fail(tuning.error());
  options.tuning = std::move(*tuning);
  auto device = (*plugin)->create_device({.index = setup.device_index});
  if (!device) return fail(device.error());
  auto backend = (*plugin)->create_backend(**device, options);
  return Machine{std::move(*device), std::move(backend)};
}

Expected<Machine> make_machine(const EngineSetup& setup) {
  BackendOptions options = setup.backend_options;
  options.threads = setup.threads;
  options.fold_decode = setup.mixed == MixedMode::kFold;
  options.kv_format = setup.kv_format;
  if (options.max_graph_rows > setup.limits.max_rows) {
    return fail(StatusCode::kInvalidArgument,
                "--cuda-graph-max-bs " + std::to_string(options.max_graph_rows) +
                    ": no step has more rows than --max-running-requests, " + std::to_string(setup.limits.max_rows));
  }
  if (options.max_graph_rows == 0) options.max_graph_rows = std::min(kDefaultGraphRows, setup.limits.max_rows);
  if (setup.device_kind == "cuda") return make_cuda_machine(setup, options);
  CHECK_MSG(setup.device_kind == "cpu", "a device kind is cpu or cuda (decide_device)");
  Machine machine{create_cpu_device(setup.device), nullptr};
  if (setup.backend == "cpu") {
    machine.backend = create_cpu_backend(options);
  } else if (setup.backend == "reference") {
    machine.backend = create_reference_backend(options);
  } else {
    return fail(StatusCode::kUnsupported, "attention backend '" + setup.backend + "' does not run on the CPU device; say cpu or reference");
  }
  return machine;
}

int load_threads(const EngineSetup& setup) {
  return setup.threads > 0 ? setup.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

int mask_threads(const EngineSetup& setup) {
  if (setup.mask_threads > 0) return setup.mask_threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 8);
}

// A checkpoint that was opened and checked, its model described with `loader`.
struct Described {
  std::shared_ptr<Checkpoint> checkpoint;
  ModelConfig config;
  std::unique_ptr<WeightLoader> loader;
  Model model;
  std::vector<std::string> unused;
};

Expected<Described> describe(const EngineSetup& setup, const Backend& backend, Device* device) {
  Described d;
  auto checkpoint = setup.dummy_weights ? Checkpoint::open_config(setup.model_path) : Checkpoint::open(setup.model_path);
  if (!checkpoint) return fail(checkpoint.error());
  d.checkpoint = *checkpoint;
  auto config = load_model_config(*d.checkpoint);
  if (!config) return fail(config.error());
  d.config = *config;
  d.config.quantization.dense_to_fp8 = setup.requantize_dense;
  if (setup.requantize_dense && d.checkpoint->gguf() != nullptr) {
    return fail(StatusCode::kUnsupported,
                "--requantize dense=fp8: not for .gguf files, whose matrices are quantised as their makers chose");
  }
  if (!setup.dummy_weights) {
    auto unused = check_model_tensors(*d.checkpoint, d.config);
    if (!unused) return fail(unused.error());
    d.unused = *unused;
  }
  d.loader = std::make_unique<WeightLoader>(*d.checkpoint, d.config, backend, device,
                                            setup.dummy_weights ? std::optional(setup.dummy_seed) : std::nullopt);
  auto model = build_model(d.config, *d.loader);
  if (!model) return fail(model.error());
  d.model = std::move(*model);
  for (KvGroupSpec& group : d.model.groups) group.format = setup.kv_format;
  if (setup.requantize_dense && d.loader->requantized_bytes() == 0) {
    return fail(StatusCode::kInvalidArgument,
                "--requantize dense=fp8: no dense matrix of this checkpoint has 16 bits or more; leave it out");
  }
  return d;
}

SchedulerConfig scheduler_config(const EngineSetup& setup, const MemoryPlan& plan, const CostModel& cost) {
  SchedulerConfig config;
  config.kv = plan.kv;
  config.max_rows = plan.step.max_rows;
  config.context_length = plan.context_length;
  config.max_step_tokens = plan.max_step_tokens;
  config.chunk_size = setup.limits.chunk_size;
  config.max_log_patch_tokens = static_cast<int32_t>(plan.slab.max_log_patch_tokens);
  config.mixed = setup.mixed;
  config.max_mixed_ratio = setup.engine.max_mixed_ratio;
  config.cost = cost;
  return config;
}

// Rows of the head behind the tokenizer's last id are padding: the sampler must not see them.
int64_t sampled_vocab(const EngineSetup& setup, const ModelConfig& config) {
  return setup.real_vocab > 0 ? std::min(setup.real_vocab, config.vocab) : config.vocab;
}

ModelReport make_report(const Described& d, const Backend& backend, MemoryPlan memory) {
  return {.config = d.config,
          .memory = std::move(memory),
          .bytes_by_format = d.loader->bytes_by_format(),
          .decisions = backend.decisions(d.model.blocks),
          .unused_tensors = d.unused,
          .load = {}};
}

}  // namespace

Expected<DeviceDecision> decide_device(const std::string& choice, int index) {
  if (choice == "cpu") return DeviceDecision{"cpu", ""};
  CHECK_MSG(choice == "cuda" || choice == "auto", "a device is auto, cpu or cuda");
  const Expected<std::string> gpu = probe_gpu(index);
  if (gpu) return DeviceDecision{"cuda", *gpu};
  if (choice == "auto") return DeviceDecision{"cpu", gpu.error().message()};
  return fail(gpu.error());
}

Expected<ModelReport> inspect_model(const EngineSetup& setup) {
  auto machine = make_machine(setup);
  if (!machine) return fail(machine.error());
  const Backend& backend = *machine->backend;
  auto described = describe(setup, backend, nullptr);
  if (!described) return fail(described.error());
  auto plan = plan_memory(described->model, described->loader->bytes(), backend, setup.limits,
                          machine->device->memory_bytes(), sampled_vocab(setup, described->config));
  if (!plan) return fail(plan.error());
  return make_report(*described, backend, std::move(*plan));
}

Expected<std::unique_ptr<EngineHost>> EngineHost::create(const EngineSetup& setup, RequestQueue& queue,
                                                         EngineStatus& status,
                                                         const std::function<void(size_t, size_t)>& progress) {
  std::unique_ptr<EngineHost> host(new EngineHost());
  auto machine = make_machine(setup);
  if (!machine) return fail(machine.error());
  host->device_ = std::move(machine->device);
  host->backend_ = std::move(machine->backend);

  auto described = describe(setup, *host->backend_, host->device_.get());
  if (!described) return fail(described.error());
  host->model_ = std::move(described->model);
  auto plan = plan_memory(host->model_, described->loader->bytes(), *host->backend_, setup.limits,
                          host->device_->memory_bytes(), sampled_vocab(setup, described->config));
  if (!plan) return fail(plan.error());
  if (!plan->fits.ok()) return fail(plan->fits);
  Status loaded = described->loader->load(load_threads(setup), [&](size_t done, size_t total) {
    status.load_done_bytes = static_cast<int64_t>(done);
    status.load_total_bytes = static_cast<int64_t>(total);
    if (progress) progress(done, total);
  });
  if (!loaded.ok()) return fail(loaded);
  host->report_ = make_report(*described, *host->backend_, *plan);
  host->report_.load = described->loader->load_report();

  auto runner = ModelRunner::create(*host->device_, *host->backend_, host->model_, *plan, setup.staging);
  if (!runner) return fail(runner.error());
  host->runner_ = std::move(*runner);
  host->cost_ = setup.measure_cost ? measure_cost_model(*host->runner_, plan->step.vocab) : setup.cost;
  host->report_.decisions = host->backend_->decisions(host->model_.blocks);
  host->masks_ = std::make_unique<MaskWorkers>(host->runner_->mask_table(), mask_threads(setup), status,
                                               [&queue] { queue.wake(); });
  SchedulerConfig scheduling = scheduler_config(setup, *plan, host->cost_);
  scheduling.masks = host->masks_.get();
  host->scheduler_ = std::make_unique<Scheduler>(std::move(scheduling));
  EngineLoopOptions loop = setup.engine;
  loop.fold = setup.mixed == MixedMode::kFold;
  host->engine_ = std::make_unique<Engine>(loop, *host->runner_, *host->scheduler_, queue, status);
  return host;
}

EngineHost::~EngineHost() {
  if (thread_.joinable()) {
    engine_->stop(true);
    thread_.join();
  }
}

void EngineHost::start() {
  engine_->admit();  // before the thread runs: who is told that the server is ready is not refused then
  thread_ = std::thread([this] { engine_->run(); });
}

void EngineHost::join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace tailrace
