#include "engine_setup.h"

namespace tailrace {
namespace {

constexpr int32_t kCpuRows = 16;     // more rows on a CPU only lengthen every step
constexpr int32_t kCpuChunk = 512;   // beyond this a chunk's linear layers gain nothing and its steps get long
constexpr double kCpuMemFraction = 0.5;

MixedMode mixed_mode(MixedChoice choice) {
  switch (choice) {
    case MixedChoice::kSplit: return MixedMode::kSplit;
    case MixedChoice::kFold: return MixedMode::kFold;
    case MixedChoice::kOff: return MixedMode::kOff;
  }
  return MixedMode::kSplit;
}

}  // namespace

EngineSetup engine_setup(const ServeConfig& config) {
  const EngineOptions& e = config.engine;
  EngineSetup setup;
  setup.model_path = config.model.path;
  setup.backend = e.attention_backend == AttentionBackendChoice::kReference ? "reference" : "cpu";
  setup.threads = e.threads;
  setup.dummy_weights = config.model.load_format == LoadFormat::kDummy;
  setup.dummy_seed = e.random_seed;
  setup.limits.max_rows = e.max_running_requests > 0 ? e.max_running_requests : kCpuRows;
  setup.limits.context_length = config.model.context_length;
  setup.limits.chunk_size = e.chunked_prefill_size > 0 ? e.chunked_prefill_size : kCpuChunk;
  setup.limits.mem_fraction = e.mem_fraction_static > 0 ? e.mem_fraction_static : kCpuMemFraction;
  setup.limits.max_total_tokens = e.max_total_tokens;
  setup.limits.prefix_cache = e.cache_type == CacheType::kRadix;
  setup.backend_options.kv_splits = e.kv_splits;
  setup.mixed = mixed_mode(e.mixed);
  setup.engine.overlap = e.overlap;
  return setup;
}

}  // namespace tailrace
