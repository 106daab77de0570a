#include "engine_setup.h"

#include <cstdio>

namespace tailrace {
namespace {

MixedMode mixed_mode(MixedChoice choice) {
  switch (choice) {
    case MixedChoice::kSplit: return MixedMode::kSplit;
    case MixedChoice::kFold: return MixedMode::kFold;
    case MixedChoice::kOff: return MixedMode::kOff;
  }
  return MixedMode::kSplit;
}

StagingMode staging_mode(StagingChoice choice) {
  switch (choice) {
    case StagingChoice::kDevice: return StagingMode::kDevice;
    case StagingChoice::kPacked: return StagingMode::kPacked;
    case StagingChoice::kPinned: return StagingMode::kPinned;
    case StagingChoice::kBlocking: return StagingMode::kBlocking;
  }
  return StagingMode::kDevice;
}

}  // namespace

Expected<std::shared_ptr<const TextModel>> load_text(const ServeConfig& config) {
  auto text = TextModel::load(config.model.path);
  if (!text) return text;
  if (Status chat = (*text)->try_chat(); !chat.ok() && config.log_level >= LogLevel::kWarning) {
    std::fprintf(stderr,
                 "tailrace: warning: the chat template refuses a user's \"Hello\", as every such chat will be: %s\n",
                 chat.message().c_str());
  }
  return text;
}

EngineSetup engine_setup(const ServeConfig& config, const TextModel& text) {
  const EngineOptions& e = config.engine;
  EngineSetup setup;
  setup.model_path = config.model.path;
  if (e.device == DeviceChoice::kCuda) {
    setup.device_kind = "cuda";
    setup.gpu_name = e.device_reason;
  }
  setup.backend = e.attention_backend == AttentionBackendChoice::kReference ? "reference" : "cpu";
  setup.threads = e.threads;
  setup.dummy_weights = config.model.load_format == LoadFormat::kDummy;
  setup.dummy_seed = e.random_seed;
  setup.requantize_dense = config.model.requantize_dense;
  setup.real_vocab = static_cast<int64_t>(text.tokenizer->vocab_size());
  setup.limits = default_limits(setup.device_kind);
  if (e.max_running_requests > 0) setup.limits.max_rows = e.max_running_requests;
  if (e.chunked_prefill_size > 0) setup.limits.chunk_size = e.chunked_prefill_size;
  if (e.mem_fraction_static > 0) setup.limits.mem_fraction = e.mem_fraction_static;
  setup.limits.context_length = config.model.context_length;
  setup.limits.max_total_tokens = e.max_total_tokens;
  setup.limits.prefix_cache = e.cache_type == CacheType::kRadix;
  setup.kv_format = e.kv_format;
  setup.backend_options.kv_splits = e.kv_splits;
  setup.backend_options.max_graph_rows = e.cuda_graph_max_bs;
  setup.mixed = mixed_mode(e.mixed);
  setup.engine.overlap = e.overlap;
  setup.staging = staging_mode(e.debug_staging);
  return setup;
}

}  // namespace tailrace
