#include "engine/engine_host.h"

#include <algorithm>

#include "engine/calibrate.h"
#include "model/model_tensors.h"

namespace tailrace {
namespace {

Expected<std::unique_ptr<Backend>> make_backend(const EngineSetup& setup) {
  BackendOptions options = setup.backend_options;
  options.threads = setup.threads;
  options.fold_decode = setup.mixed == MixedMode::kFold;
  if (setup.backend == "cpu") return create_cpu_backend(options);
  if (setup.backend == "reference") return create_reference_backend(options);
  return fail(StatusCode::kUnsupported, "attention backend '" + setup.backend + "' is not in this build; say cpu or reference");
}

int load_threads(const EngineSetup& setup) {
  return setup.threads > 0 ? setup.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
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
          .decisions = backend.decisions(),
          .unused_tensors = d.unused};
}

}  // namespace

Expected<ModelReport> inspect_model(const EngineSetup& setup) {
  auto backend = make_backend(setup);
  if (!backend) return fail(backend.error());
  auto described = describe(setup, **backend, nullptr);
  if (!described) return fail(described.error());
  const size_t memory_bytes = create_cpu_device(setup.device)->memory_bytes();
  auto plan = plan_memory(described->model, described->loader->bytes(), **backend, setup.limits, memory_bytes,
                          sampled_vocab(setup, described->config));
  if (!plan) return fail(plan.error());
  return make_report(*described, **backend, std::move(*plan));
}

Expected<std::unique_ptr<EngineHost>> EngineHost::create(const EngineSetup& setup, RequestQueue& queue,
                                                         EngineStatus& status,
                                                         const std::function<void(size_t, size_t)>& progress) {
  std::unique_ptr<EngineHost> host(new EngineHost());
  host->device_ = create_cpu_device(setup.device);
  auto backend = make_backend(setup);
  if (!backend) return fail(backend.error());
  host->backend_ = std::move(*backend);

  auto described = describe(setup, *host->backend_, host->device_.get());
  if (!described) return fail(described.error());
  host->model_ = std::move(described->model);
  auto plan = plan_memory(host->model_, described->loader->bytes(), *host->backend_, setup.limits,
                          host->device_->memory_bytes(), sampled_vocab(setup, described->config));
  if (!plan) return fail(plan.error());
  Status loaded = described->loader->load(load_threads(setup), [&](size_t done, size_t total) {
    status.load_done_bytes = static_cast<int64_t>(done);
    status.load_total_bytes = static_cast<int64_t>(total);
    if (progress) progress(done, total);
  });
  if (!loaded.ok()) return fail(loaded);
  host->report_ = make_report(*described, *host->backend_, *plan);

  auto runner = ModelRunner::create(*host->device_, *host->backend_, host->model_, *plan);
  if (!runner) return fail(runner.error());
  host->runner_ = std::move(*runner);
  host->cost_ = setup.measure_cost ? measure_cost_model(*host->runner_, plan->step.vocab) : setup.cost;
  host->report_.decisions = host->backend_->decisions();
  host->scheduler_ = std::make_unique<Scheduler>(scheduler_config(setup, *plan, host->cost_));
  host->engine_ = std::make_unique<Engine>(setup.engine, *host->runner_, *host->scheduler_, queue, status);
  return host;
}

EngineHost::~EngineHost() {
  if (thread_.joinable()) {
    engine_->stop(true);
    thread_.join();
  }
}

void EngineHost::start() {
  thread_ = std::thread([this] { engine_->run(); });
}

void EngineHost::join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace tailrace
