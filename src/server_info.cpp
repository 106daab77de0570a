#include "server_info.h"

#include "output/output_format.h"

namespace tailrace {
namespace {

template <typename Choice, size_t N>
const char* word(Choice choice, const char* const (&words)[N]) {
  return words[static_cast<size_t>(choice)];
}

template <typename Choice>
std::string name_of(const std::map<std::string, Choice>& names, Choice choice) {
  for (const auto& [name, value] : names) {
    if (value == choice) return name;
  }
  return "";
}

constexpr const char* kLogLevels[] = {"error", "warning", "info", "debug"};
constexpr const char* kMixed[] = {"split", "fold", "off"};
constexpr const char* kStaging[] = {"device", "packed", "pinned", "blocking"};

Json engine_config(const EngineOptions& engine, const EngineSetup& setup,
                   const MemoryPlan& memory) {
  const bool cuda = engine.device == DeviceChoice::kCuda;
  const auto& full = memory.kv.groups.empty() ? KvGroupConfig{} : memory.kv.groups.front();
  return {{"device", cuda ? "cuda" : "cpu"},
          {"attention_backend", cuda ? "cuda" : setup.backend},
          {"threads", engine.threads > 0 ? Json(engine.threads) : Json("all cores")},
          {"max_running_requests", memory.step.max_rows},
          {"chunked_prefill_size", setup.limits.chunk_size},
          {"max_step_tokens", memory.max_step_tokens},
          {"mem_fraction_static", setup.limits.mem_fraction},
          {"max_total_tokens", int64_t{full.num_blocks} * setup.limits.block_size},
          {"cuda_graph_max_bs",
           engine.cuda_graph_max_bs > 0 ? Json(engine.cuda_graph_max_bs) : Json("auto")},
          {"kv_cache_dtype", engine.kv_format == Format::kF8E4M3 ? "fp8" : "bf16"},
          {"cache_type", engine.cache_type == CacheType::kRadix ? "radix" : "naive"},
          {"mixed", word(engine.mixed, kMixed)},
          {"moe_strategy", "fused"},
          {"overlap", engine.overlap},
          {"debug_staging", word(engine.debug_staging, kStaging)},
          {"kv_splits", engine.kv_splits > 0 ? Json(engine.kv_splits) : Json("auto")},
          {"random_seed", engine.has_random_seed ? Json(engine.random_seed) : Json(nullptr)}};
}

Json http_config(const HttpOptions& http, const LimitOptions& limits) {
  return {{"host", http.host},
          {"port", http.port},
          {"api_key_file", http.api_key_file.empty() ? Json(nullptr) : Json(http.api_key_file)},
          {"max_running_requests_per_key",
           http.max_running_per_key > 0 ? Json(http.max_running_per_key) : Json(nullptr)},
          {"cors_allow_origin", http.cors_origins},
          {"allowed_hosts", http.allowed_hosts},
          {"max_body_bytes", http.max_body_bytes},
          {"max_total_body_bytes", http.max_total_body_bytes},
          {"tokenizer_threads",
           http.tokenizer_threads > 0 ? Json(http.tokenizer_threads) : Json("auto")},
          {"max_queued_requests", limits.max_queued_requests},
          {"max_stored_responses", limits.max_stored_responses},
          {"max_stored_response_bytes", limits.max_stored_response_bytes},
          {"request_timeout",
           limits.request_timeout_s > 0 ? Json(limits.request_timeout_s) : Json(nullptr)},
          {"shutdown_timeout", limits.shutdown_timeout_s},
          {"health_timeout", limits.health_timeout_s}};
}

Json path(const char* name, bool on, std::string reason) {
  return {{"name", name}, {"on", on}, {"reason", std::move(reason)}};
}

// Why no GPU serves, or which one does.
std::string device_reason(const EngineOptions& engine) {
  if (engine.device == DeviceChoice::kCuda) return engine.device_reason;
  return engine.device_reason.empty() ? "the command line says CPU" : engine.device_reason;
}

Json tools_path(const ServedModel& model) {
  const auto& chat_template = model.text->chat_template;
  if (!chat_template) return path("tools", false, model.text->no_template_reason);
  if (model.output.tools == ToolFormat::kNone) return path("tools", false, "how it writes calls is not known");
  const bool shown = chat_template->habits().tools;
  return path("tools", shown, std::string("the chat template ") + (shown ? "shows" : "does not show") + " them");
}

Json fast_paths(const EngineOptions& engine, const MemoryPlan& memory, const ServedModel& model) {
  const bool gpu = engine.device == DeviceChoice::kCuda;
  const bool split = engine.mixed == MixedChoice::kSplit,
             radix = engine.cache_type == CacheType::kRadix;
  const bool on_device = engine.debug_staging == StagingChoice::kDevice;
  Json out = {
      path("gpu", gpu, device_reason(engine)),
      path("captured_decode_graphs", gpu,
           gpu ? "sizes under kernels" : "there are none on the CPU"),
      path("overlap", engine.overlap,
           engine.overlap ? "a step is prepared while the last one runs" : "--overlap off"),
      path("mixed_steps_split", split,
           split ? "decode rows keep their kernel beside prefill"
                 : std::string("--mixed ") + word(engine.mixed, kMixed)),
      path("metadata_on_device", on_device,
           on_device ? "a step like the last one sends nothing"
                     : std::string("--debug-staging ") + word(engine.debug_staging, kStaging)),
      path("prefix_cache", radix, radix ? "--cache-type radix" : "--cache-type naive")};
  const int32_t checkpoints = memory.kv.states.num_checkpoints;
  if (checkpoints > 0)
    out.push_back(
        path("state_checkpoints", radix, std::to_string(checkpoints) + " of recurrent states"));
  out.push_back(
      path("grammars", model.grammars != nullptr,
           model.grammars ? "masks are computed beside the forward" : model.no_grammars_reason));
  out.push_back(tools_path(model));
  return out;
}

}  // namespace

Json server_info(const ServeConfig& config, const EngineSetup& setup, const EngineHost& host,
                 const ServedModel& model) {
  const ModelReport& report = host.report();
  Json settings = {
      {"model", config.model.path},
      {"served_model_name", model.name},
      {"context_length", model.context_length},
      {"load_format", config.model.load_format == LoadFormat::kDummy ? "dummy" : "auto"},
      {"requantize", config.model.requantize_dense ? "dense=fp8" : "none"},
      {"tool_call_parser", name_of(tool_format_names(), model.output.tools)},
      {"reasoning_parser", name_of(reasoning_format_names(), model.output.reasoning)}};
  settings.update(engine_config(config.engine, setup, report.memory));
  settings.update(http_config(config.http, config.limits));
  settings["log_level"] = word(config.log_level, kLogLevels);
  settings["log_format"] = config.log_format == LogFormat::kJson ? "json" : "text";
  Json ledger = Json::array(), formats = Json::object();
  for (const LedgerLine& line : report.memory.ledger) {
    ledger.push_back({{"name", line.name}, {"bytes", line.bytes}, {"detail", line.detail}});
  }
  for (const auto& [format, bytes] : report.bytes_by_format) formats[format] = bytes;
  return {
      {"model",
       {{"name", model.name},
        {"path", config.model.path},
        {"architecture", architecture_name(report.config.architecture)},
        {"layers", report.config.layers},
        {"vocabulary", model.vocab_size},
        {"context_length", model.context_length},
        {"weight_bytes_by_format", formats}}},
      {"device",
       {{"description", host.device().description()}, {"reason", device_reason(config.engine)}}},
      {"config", std::move(settings)},
      {"memory", std::move(ledger)},
      {"kernels", report.decisions},
      {"notes", report.memory.notes},
      {"fast_paths", fast_paths(config.engine, report.memory, model)}};
}

}  // namespace tailrace
