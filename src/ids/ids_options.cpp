#include "ids/ids_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/choice_option.h"

namespace tailrace {
namespace {

constexpr const char* kTuneFlags[] = {"--tune", "--model", "--gpu", "--device", "--out"};
constexpr int32_t kComparedPrompts = 8;  // one alone would be neither batched nor mixed

// What a flag may override of a device's defaults; 0: not given.
struct Overrides {
  std::string device = "auto";
  int32_t max_rows = 0, chunk = 0, graph_rows = 0;
  double mem_fraction = 0;
  std::string kv_splits = "auto";
  bool naive_cache = false;
};

void add_engine_flags(CLI::App& app, IdsOptions& o, Overrides& over) {
  EngineSetup& setup = o.setup;
  app.add_option("--model", setup.model_path,
                 ".gguf file, Hugging Face directory, or with --dummy a directory with a config.json");
  app.add_flag("--dummy", setup.dummy_weights, "random weights: config.json is enough");
  add_choice(app, "--requantize", setup.requantize_dense, {{"none", false}, {"dense=fp8", true}},
             "dense=fp8: dense matrices of 16 bits and the head are rounded to FP8 on loading");
  add_choice(app, "--kv-cache-dtype", setup.kv_format, kv_cache_dtypes(),
             "fp8: keys and values in e4m3, lossy (auto: bf16)");
  app.add_option("--device", over.device, "auto: a GPU where this build can use one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--gpu", setup.device_index, "which GPU, from 0")->check(CLI::NonNegativeNumber);
  app.add_option("--backend", setup.backend, "kernels on the CPU device")->check(CLI::IsMember({"cpu", "reference"}));
  app.add_option("--threads", setup.threads, "CPU threads: kernels, and loading")->check(CLI::Range(1, 1024));
  app.add_option("--max-running-requests", over.max_rows)->check(CLI::Range(1, 4096));
  app.add_option("--chunked-prefill-size", over.chunk)->check(CLI::Range(1, 1 << 20));
  app.add_option("--context-length", setup.limits.context_length)->check(CLI::Range(2, 1 << 24));
  app.add_option("--max-total-tokens", setup.limits.max_total_tokens)->check(CLI::Range(int64_t{16}, int64_t{1} << 40));
  app.add_option("--mem-fraction-static", over.mem_fraction)->check(CLI::Range(0.01, 0.99));
  app.add_option("--cuda-graph-max-bs", over.graph_rows)->check(CLI::Range(1, 4096));
  app.add_option("--kv-splits", over.kv_splits, "auto or a number");
  app.add_flag("--no-prefix-cache", over.naive_cache);
  add_choice(app, "--mixed", setup.mixed,
             {{"split", MixedMode::kSplit}, {"fold", MixedMode::kFold}, {"off", MixedMode::kOff}});
  add_choice(app, "--overlap", setup.engine.overlap, {{"on", true}, {"off", false}});
  add_choice(app, "--debug-staging", setup.staging,
             {{"device", StagingMode::kDevice},
              {"packed", StagingMode::kPacked},
              {"pinned", StagingMode::kPinned},
              {"blocking", StagingMode::kBlocking}},
             "how a step's metadata reaches the device: device, or packed, pinned, blocking to compare with");
}

void add_work_flags(CLI::App& app, IdsOptions& o) {
  app.add_option("--prompt-file", o.prompt_file, "one prompt a line, ids apart by spaces or commas");
  app.add_option("--prompts", o.prompts, "how many random prompts (default 1; with --compare 8)")->check(CLI::Range(1, 1 << 14));
  app.add_option("--prompt-len", o.prompt_len, "tokens of each")->check(CLI::Range(1, 1 << 24));
  app.add_option("--output-len", o.output_len, "tokens to generate for each")->check(CLI::Range(1, 1 << 24));
  app.add_option("--seed", o.seed);
  app.add_option("--temperature", o.temperature, "0: greedy")->check(CLI::Range(0.0, 2.0));
  app.add_option("--stop-ids", o.stop_ids, "ids that end an answer (default: none does)")->delimiter(',');
  app.add_option("--concurrency", o.concurrency, "requests in the engine at a time (default: all)")
      ->check(CLI::Range(1, 1 << 14));
  app.add_option("--arrivals", o.arrivals_ms, "milliseconds between two submissions")->check(CLI::Range(0.0, 1e6));
  app.add_flag("--print-ids", o.print_ids);
  app.add_flag("--stats", o.stats, "a table: speed, steps, idle time, contracts");
  app.add_option("--trace", o.trace, "writes a trace for Perfetto or chrome://tracing")->option_text("FILE");
  app.add_flag("--compare", o.compare,
               "the same prompts alone, batched, mixed, chunked, cached, overlap off, and others cached at edges and preempted: the same answers?");
  app.add_flag("--contracts", o.contracts, "--prompts rows in steady state: does anything wait, allocate or load?");
  app.add_option("--contract-steps", o.contract_steps, "decode steps of --contracts without arrivals (default 10000)")
      ->check(CLI::Range(64, 1 << 20));
  app.add_flag("--idle-table", o.idle_table, "the device's idle time between steps, for each --debug-staging");
  app.add_option("--bench-decode", o.bench_contexts, "decode speed at these contexts (1k,8k,...) on real prefills; --output-len steps each")
      ->option_text("N,N");
  app.add_option("--batch", o.bench_rows, "rows decoded together, for --bench-decode (default 1)")->option_text("N,N");
  app.add_flag("--per-op", o.per_op, "where a step's time goes, for --bench-decode on a GPU");
  app.add_flag("--tune", o.tune, "measures the GPU's tuning table, for --model's attention or a built-in list's, and writes it");
  app.add_option("--out", o.tune_out, "of --tune (default: the GPU's name .json)")->option_text("FILE");
  add_choice(app, "--reference", o.cpu_reference, {{"device", false}, {"cpu", true}},
             "whose answers --compare compares with: the device's own (default), or the CPU's kernels'");
  app.add_option("--max-forced", o.max_forced,
                 "share of tokens whose margin is within the tolerance, for --compare (default 0.03)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--max-outside", o.max_outside, "share of tokens that may differ whatever their margin, for --compare (default 0)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--tolerance", o.tolerance, "of a logit, for --compare (default 0.1)")->check(CLI::Range(0.0, 10.0));
}

Status apply(const Overrides& over, EngineSetup& setup) {
  EngineLimits limits = default_limits(setup.device_kind);
  limits.context_length = setup.limits.context_length;
  limits.max_total_tokens = setup.limits.max_total_tokens;
  limits.prefix_cache = !over.naive_cache;
  if (over.max_rows > 0) limits.max_rows = over.max_rows;
  if (over.chunk > 0) limits.chunk_size = over.chunk;
  if (over.mem_fraction > 0) limits.mem_fraction = over.mem_fraction;
  setup.limits = limits;
  setup.backend_options.max_graph_rows = over.graph_rows;
  if (over.kv_splits != "auto") {
    char* end = nullptr;
    const long splits = std::strtol(over.kv_splits.c_str(), &end, 10);
    if (*end != '\0' || splits < 1 || splits > 256)
      return invalid("--kv-splits " + over.kv_splits + ": auto or 1..256");
    setup.backend_options.kv_splits = static_cast<int>(splits);
  }
  if (over.graph_rows > 0 && setup.device_kind == "cpu") {
    return invalid("--cuda-graph-max-bs: there are no CUDA graphs on the CPU device; leave it out");
  }
  if (setup.device_kind == "cuda" && setup.backend != "cpu") return invalid("--backend is for --device cpu");
  return Status();
}

// The first flag given that the chosen mode would not look at, or "".
std::string without_effect(const CLI::App& app, const IdsOptions& o) {
  if (o.tune) {
    for (const CLI::Option* option : app.get_options()) {
      const std::string name = option->get_name();
      const auto is = [&](const char* used) { return name == used; };
      if (option->count() > 0 && std::none_of(std::begin(kTuneFlags), std::end(kTuneFlags), is)) return name;
    }
    return "";
  }
  std::vector<const char*> unused = {"--out"};
  const auto add = [&](bool condition, std::initializer_list<const char*> flags) {
    if (condition) unused.insert(unused.end(), flags);
  };
  add(!o.compare, {"--tolerance", "--max-forced", "--max-outside", "--reference"});
  add(o.compare, {"--no-prefix-cache"});
  add(!o.contracts, {"--contract-steps"});
  add(o.bench_contexts.empty(), {"--batch", "--per-op"});
  add(!o.bench_contexts.empty(), {"--concurrency", "--arrivals", "--trace", "--stats", "--print-ids", "--prompt-file", "--prompts", "--prompt-len",
                                  "--temperature", "--stop-ids", "--max-running-requests", "--context-length"});
  add(o.compare || o.contracts || o.idle_table, {"--concurrency", "--arrivals", "--trace", "--stats", "--print-ids"});
  add(o.contracts || o.idle_table, {"--prompt-file", "--output-len"});
  add(o.idle_table, {"--prompts"});
  for (const char* flag : unused) {
    if (app.count(flag) > 0) return flag;
  }
  return "";
}

}  // namespace

Expected<std::optional<IdsOptions>> parse_ids_options(int argc, char** argv) {
  CLI::App app("Runs the engine on prompts of token ids: no server, no text.", "tailrace_ids");
  IdsOptions o;
  Overrides over;
  add_engine_flags(app, o, over);
  add_work_flags(app, o);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", app.help().c_str());
    return std::optional<IdsOptions>();
  } catch (const CLI::Error& error) {
    return fail(StatusCode::kInvalidArgument, std::string(error.what()) + " (tailrace_ids --help)");
  }
  if (!o.tune && o.setup.model_path.empty())
    return fail(StatusCode::kInvalidArgument, "--model is required (tailrace_ids --help)");
  if (o.compare + o.contracts + o.idle_table + o.tune + !o.bench_contexts.empty() > 1)
    return fail(StatusCode::kInvalidArgument, "--compare, --contracts, --idle-table, --bench-decode, --tune: one at a time");
  if (const std::string flag = without_effect(app, o); !flag.empty()) {
    const char* mode = "a plain run";
    for (const char* chosen : {"--compare", "--contracts", "--idle-table", "--bench-decode", "--tune"}) {
      if (app.count(chosen) > 0) mode = chosen;
    }
    return fail(StatusCode::kInvalidArgument, flag + " has no effect on " + mode + ": leave it out");
  }
  for (const double value : {over.mem_fraction, o.arrivals_ms, o.tolerance, o.max_forced, o.max_outside, static_cast<double>(o.temperature)}) {
    if (std::isnan(value)) return fail(StatusCode::kInvalidArgument, "nan is no value of a flag");
  }
  if (o.tune && over.device == "cpu") return fail(StatusCode::kInvalidArgument, "--tune is of a GPU: leave --device cpu out");
  if (o.compare && o.setup.mixed == MixedMode::kOff)
    return fail(StatusCode::kInvalidArgument, "--compare goes mixed ways, and off as one of them: leave --mixed off out");
  if (o.compare && o.temperature > 0)
    return fail(StatusCode::kInvalidArgument, "--compare is greedy: leave --temperature out");
  if (o.cpu_reference && o.setup.dummy_weights)
    return fail(StatusCode::kInvalidArgument, "--reference cpu: --dummy draws other weights on a GPU than on the CPU");
  if (o.compare && app.count("--prompts") == 0) o.prompts = kComparedPrompts;
  if (o.idle_table && o.setup.staging != StagingMode::kDevice)
    return fail(StatusCode::kInvalidArgument, "--idle-table runs every staging: leave --debug-staging out");
  if (o.tune) return std::optional<IdsOptions>(std::move(o));
  auto device = decide_device(over.device, o.setup.device_index);
  if (!device) return fail(StatusCode::kInvalidArgument, "--device cuda: " + device.error().message());
  if (device->kind == "cpu" && app.count("--gpu") > 0) {
    const std::string why = device->reason.empty() ? "" : ": " + device->reason;
    return fail(StatusCode::kInvalidArgument, "--gpu: no GPU is used" + why);
  }
  o.setup.device_kind = device->kind;
  o.device_reason = device->reason;
  if (device->kind == "cuda") o.setup.gpu_name = device->reason;
  o.setup.dummy_seed = o.seed;
  if (Status status = apply(over, o.setup); !status.ok()) return fail(status);
  return std::optional<IdsOptions>(std::move(o));
}

}  // namespace tailrace
