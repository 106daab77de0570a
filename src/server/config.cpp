#include "server/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "base/choice_option.h"
#include "server/config_check.h"

namespace tailrace {
namespace {

constexpr const char* kUsage =
    "tailrace: an LLM inference server with an OpenAI-compatible API\n"
    "\n"
    "  tailrace serve   --model PATH   serve a Hugging Face directory or a .gguf file\n"
    "  tailrace chat    --model PATH   talk to a model in the terminal (starts a server), or --base-url URL\n"
    "  tailrace launch  claude|codex|opencode   the configuration that points a coding agent at a running server\n"
    "  tailrace inspect --model PATH   architecture, tensors, memory ledger and fast paths, without loading weights\n"
    "  tailrace tune                   measure the tuning table of this machine's GPU\n"
    "  tailrace bench decode --model PATH   decode speed at given contexts, beside what a step's bytes allow\n"
    "  tailrace --version\n"
    "\n"
    "`tailrace COMMAND --help` lists a command's options.\n";

const std::map<std::string, bool> kOnOff = {{"on", true}, {"off", false}};

// For doubles: CLI::Range lets NaN through.
std::function<std::string(const std::string&)> within(double lo, double hi) {
  return [lo, hi](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (end != text.c_str() && *end == '\0' && value >= lo && value <= hi) return std::string();
    std::ostringstream message;
    message << text << " is not in " << lo << " to " << hi;
    return message.str();
  };
}

void add_model_options(CLI::App& app, ServeConfig& config) {
  auto& model = config.model;
  app.add_option("--model,--model-path", model.path, "Hugging Face directory or .gguf file")
      ->group("Model")->option_text("PATH");
  app.add_option("--served-model-name", model.served_name, "name in the API (default: last part of the path)")
      ->group("Model")->option_text("NAME");
  app.add_option("--context-length,--max-seq-len-override", model.context_length,
                 "prompt + output tokens of a request (default: the model's)")
      ->check(CLI::Range(2, 1 << 24))->group("Model")->option_text("N");
  add_choice(app, "--load-format", model.load_format,
             {{"auto", LoadFormat::kAuto}, {"dummy", LoadFormat::kDummy}}, "dummy: random weights, for speed tests")
      ->group("Model");
  add_choice(app, "--requantize", model.requantize_dense, {{"none", false}, {"dense=fp8", true}},
             "dense=fp8: dense matrices of 16 bits and the head are rounded to FP8 on loading, a scale a row: faster, lossy")
      ->group("Model");
  app.add_flag_callback("--text-model-only", [] {}, "what a checkpoint has for images is left alone: it always is")
      ->group("Model");
  add_choice(app, "--tool-call-parser", model.tool_call_parser, tool_format_names(),
             "how the model writes tool calls (default: auto, from its chat template)")->group("Model");
  add_choice(app, "--reasoning-parser", model.reasoning_parser, reasoning_format_names(),
             "how the model marks its reasoning (default: auto, from its chat template)")->group("Model");
}

void add_engine_options(CLI::App& app, ServeConfig& config, std::string& kv_splits) {
  auto& engine = config.engine;
  add_choice(app, "--device", engine.device,
             {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}},
             "auto: a GPU where this build can use one, else the CPU")->group("Engine");
  add_choice(app, "--attention-backend", engine.attention_backend,
             {{"auto", AttentionBackendChoice::kAuto}, {"cpu", AttentionBackendChoice::kCpu},
              {"cuda", AttentionBackendChoice::kCuda}, {"reference", AttentionBackendChoice::kReference}},
             "kernels that compute the model")->group("Engine");
  app.add_option("--threads", engine.threads, "CPU kernel threads (default: all cores)")
      ->check(CLI::Range(1, 1024))->group("Engine")->option_text("N");
  app.add_option("--max-running-requests", engine.max_running_requests, "requests decoded together; also bounds n")
      ->check(CLI::Range(1, 4096))->group("Engine")->option_text("N");
  app.add_option("--chunked-prefill-size", engine.chunked_prefill_size, "most prompt tokens in a step")
      ->check(CLI::Range(1, 1 << 20))->group("Engine")->option_text("N");
  app.add_option("--mem-fraction-static", engine.mem_fraction_static,
                 "share of the device's memory for weights and KV cache")
      ->check(within(0.01, 0.99))->group("Engine")->option_text("0.01-0.99");
  app.add_option("--max-total-tokens", engine.max_total_tokens, "size of the KV pool (default: by memory)")
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 40))->group("Engine")->option_text("N");
  app.add_option("--cuda-graph-max-bs", engine.cuda_graph_max_bs, "largest decode batch that is captured as a graph (default 64)")
      ->check(CLI::Range(1, 4096))->group("Engine")->option_text("N");
  add_choice(app, "--cache-type", engine.cache_type,
             {{"radix", CacheType::kRadix}, {"naive", CacheType::kNaive}}, "naive: no prefix reuse")->group("Engine");
  add_choice(app, "--kv-cache-dtype", engine.kv_format, kv_cache_dtypes(),
             "fp8: keys and values are kept in e4m3, without scales: half the bytes, lossy (auto: bf16)")->group("Engine");
  add_choice(app, "--mixed", engine.mixed,
             {{"split", MixedChoice::kSplit}, {"fold", MixedChoice::kFold}, {"off", MixedChoice::kOff}},
             "how decode and prefill share a step (fold, off: for comparison)")->group("Engine");
  add_choice(app, "--moe-strategy", engine.moe_strategy, {{"fused", MoeStrategy::kFused}},
             "mixtures of experts: all experts on the device, one pass over the chosen ones")->group("Engine");
  add_choice(app, "--overlap", engine.overlap, kOnOff, "prepare a step while the last one runs")->group("Engine");
  app.add_option("--kv-splits", kv_splits, "parts of a row's keys in decode attention (default: auto)")
      ->group("Engine")->option_text("auto|N");
  add_choice(app, "--debug-staging", engine.debug_staging,
             {{"device", StagingChoice::kDevice}, {"packed", StagingChoice::kPacked},
              {"pinned", StagingChoice::kPinned}, {"blocking", StagingChoice::kBlocking}},
             "how a step's metadata reaches the device (all but device: for comparison)")->group("Debug");
  app.add_option("--random-seed", engine.random_seed, "makes drawn seeds and dummy weights reproducible")
      ->check([](const std::string& text) {
        uint64_t seed = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
        const bool good = error == std::errc() && end == text.data() + text.size();
        return good ? std::string()
                    : "a seed is a whole number from 0 to " + std::to_string(UINT64_MAX) + ", not " + text +
                          "; leave the flag out for a fresh one";
      })
      ->group("Engine")->option_text("N");
}

// One value a flag: `--api-key A --api-key B`.
void add_repeated(CLI::App& app, const std::string& name, std::vector<std::string>& values, const char* help,
                  const char* value_name) {
  app.add_option(name, values, help)->allow_extra_args(false)->group("HTTP")->option_text(value_name);
}

void add_access_options(CLI::App& app, HttpOptions& http) {
  add_repeated(app, "--api-key", http.api_keys, "asks for `Authorization: Bearer KEY`; may be given several times", "KEY");
  app.add_option("--api-key-file", http.api_key_file,
                 "file of keys, a line each: KEY or NAME:KEY, max_running=N behind it or not; read again on SIGHUP")
      ->group("HTTP")->option_text("FILE");
  app.add_option("--max-running-requests-per-key", http.max_running_per_key,
                 "answers generated for one key at a time; beyond: 429 (default: no bound)")
      ->check(CLI::Range(1, 1 << 20))->group("HTTP")->option_text("N");
  add_repeated(app, "--cors-allow-origin", http.cors_origins,
               "web pages that may use the API from a browser: scheme://host[:port], file://, null or *; may be given "
               "several times",
               "ORIGIN");
  add_repeated(app, "--allowed-hosts", http.allowed_hosts,
               "without keys, on a loopback address: names besides localhost by which the server is asked; may be given several times",
               "NAME");
}

void add_http_options(CLI::App& app, ServeConfig& config) {
  auto& http = config.http;
  auto& limits = config.limits;
  app.add_option("--host", http.host, "address to listen on (default 127.0.0.1)")->group("HTTP")->option_text("ADDR");
  app.add_option("--port", http.port, "port (default 8000; 0: any)")
      ->check([](const std::string& text) {
        const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos && text.size() <= 5;
        return digits && std::stoi(text) <= 65535 ? std::string() : "a port is a number from 0 to 65535, not " + text;
      })
      ->group("HTTP")->option_text("N");
  add_access_options(app, http);
  app.add_option("--max-queued-requests", limits.max_queued_requests,
                 "accepted but not running; beyond: 503 (default 256)")
      ->check(CLI::Range(1, 1 << 20))->group("HTTP")->option_text("N");
  app.add_option("--max-stored-responses", limits.max_stored_responses,
                 "answers of /v1/responses kept to be read or continued, the last used first; 0: none (default 1024)")
      ->check(CLI::Range(0, 1 << 20))->group("HTTP")->option_text("N");
  app.add_option("--max-stored-response-bytes", limits.max_stored_response_bytes,
                 "and their bytes, all together (default 67108864)")
      ->check(CLI::Range(int64_t{1} << 10, int64_t{1} << 40))->group("HTTP")->option_text("BYTES");
  app.add_option("--max-connections", http.max_connections, "open connections; beyond: the longest idle one is closed (default 4096)")
      ->check(CLI::Range(1, 1 << 16))->group("HTTP")->option_text("N");
  app.add_option("--max-body-bytes", http.max_body_bytes, "largest request body; beyond: 413 (default 32 MiB)")
      ->check(CLI::Range(int64_t{1024}, int64_t{1} << 30))->group("HTTP")->option_text("N");
  app.add_option("--max-total-body-bytes", http.max_total_body_bytes,
                 "request bodies and what is parsed from them, all together; beyond: 503 (default 512 MiB, or 4 x "
                 "--max-body-bytes if larger)")
      ->check(CLI::Range(int64_t{1024}, int64_t{1} << 40))->group("HTTP")->option_text("N");
  app.add_option("--request-timeout", limits.request_timeout_s, "seconds a request may take (default: no limit)")
      ->check(within(0, 1e6))->group("HTTP")->option_text("S");
  app.add_option("--shutdown-timeout", limits.shutdown_timeout_s,
                 "seconds that running requests may take after SIGTERM (default 30)")
      ->check(within(0, 86400))->group("HTTP")->option_text("S");
  app.add_option("--health-timeout", limits.health_timeout_s,
                 "seconds without progress after which /health says hung (default 60)")
      ->check(within(0.1, 86400))->group("HTTP")->option_text("S");
  app.add_option("--tokenizer-threads", http.tokenizer_threads, "threads that tokenize requests")
      ->check(CLI::Range(1, 64))->group("HTTP")->option_text("N");
  add_choice(app, "--log-level", config.log_level,
             {{"error", LogLevel::kError}, {"warning", LogLevel::kWarning}, {"info", LogLevel::kInfo},
              {"debug", LogLevel::kDebug}}, "")->group("HTTP");
  add_choice(app, "--log-format", config.log_format, {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
             "lines on stderr, one for each request that ends")->group("HTTP");
  app.add_option("--debug-io-threads", http.io_threads, "threads of the sockets")
      ->check(CLI::Range(1, 64))->group("Debug")->option_text("N");
  app.add_option("--debug-max-unsent-bytes", http.max_unsent_bytes, "per connection; a slower reader is cut off")
      ->check(CLI::Range(int64_t{1024}, int64_t{1} << 30))->group("Debug")->option_text("N");
  app.add_option("--debug-header-timeout", http.header_timeout_s, "seconds for a request's headers to arrive")
      ->check(CLI::Range(1, 3600))->group("Debug")->option_text("S");
  app.add_option("--debug-body-timeout", http.body_timeout_s, "seconds for a request's body to arrive")
      ->check(CLI::Range(1, 3600))->group("Debug")->option_text("S");
}

// Runs CLI11 on `args`. Empty result: parsed; text: help was asked for.
Expected<std::optional<std::string>> run_parser(CLI::App& app, std::vector<std::string> args) {
  for (const auto& arg : args) {
    if (Status status = explain_foreign_flag(arg); !status.ok()) return fail(status);
  }
  std::reverse(args.begin(), args.end());
  try {
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    return std::optional<std::string>(app.help());
  } catch (const CLI::ExtrasError&) {
    std::string unknown;
    for (const auto& extra : app.remaining()) {
      if (unknown.empty() || extra.rfind("--", 0) == 0) unknown = extra;
      if (extra.rfind("--", 0) == 0) break;
    }
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
      for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    }
    return fail(unknown_flag(unknown, names, app.get_name()));
  } catch (const CLI::ConfigError& error) {
    return fail(StatusCode::kInvalidArgument,
                std::string("--config file: ") + error.what() + " (keys are flag names without the dashes)");
  } catch (const CLI::FileError& error) {
    return fail(StatusCode::kInvalidArgument, std::string("--config: ") + error.what());
  } catch (const CLI::Error& error) {
    return fail(StatusCode::kInvalidArgument, one_line(error.what()));
  }
  return std::optional<std::string>();
}

Expected<CommandLine> parse_serve(const std::vector<std::string>& args, const BuildFacts& facts, bool inspect) {
  CLI::App app(inspect ? "What serving this model would do, without loading its weights."
                       : "Serves a model over an OpenAI-compatible HTTP API.",
               inspect ? "tailrace inspect" : "tailrace serve");
  ServeConfig config;
  std::string kv_splits = "auto";
  add_model_options(app, config);
  add_engine_options(app, config, kv_splits);
  add_http_options(app, config);
  app.set_config("--config", "", "file of `flag = value` lines (flag names without the dashes); flags win over it")
      ->option_text("FILE");
  app.allow_config_extras(false);
  auto help = run_parser(app, args);
  if (!help) return fail(help.error());
  if (help->has_value()) return CommandLine(PrintAndExit{**help});
  if (app.count("--max-total-body-bytes") == 0) {
    config.http.max_total_body_bytes = std::max(config.http.max_total_body_bytes, 4 * config.http.max_body_bytes);
  }
  config.engine.has_random_seed = app.count("--random-seed") > 0;
  if (Status status = parse_kv_splits(kv_splits, config.engine.kv_splits); !status.ok()) return fail(status);
  if (Status status = check_serve_config(config); !status.ok()) return fail(status);
  if (Status status = settle_device(config.engine, facts); !status.ok()) return fail(status);
  if (config.model.served_name.empty()) config.model.served_name = default_served_name(config.model.path);
  if (inspect) return CommandLine(InspectConfig{std::move(config)});
  return CommandLine(std::move(config));
}

Expected<CommandLine> parse_chat(std::vector<std::string> args) {
  CLI::App app("Terminal chat. Ctrl-C stops an answer; /reset forgets the conversation, /exit ends.", "tailrace chat");
  ChatConfig config;
  if (auto dashes = std::find(args.begin(), args.end(), "--"); dashes != args.end()) {
    config.server_args.assign(dashes + 1, args.end());
    args.erase(dashes, args.end());
  }
  app.add_option("--base-url", config.base_url, "server to attach to")->option_text("http://HOST:PORT");
  app.add_option("--model,--model-path", config.model, "model to start a server for; with --base-url: name to ask for")
      ->option_text("PATH");
  app.add_option("--api-key", config.api_key, "sent as `Authorization: Bearer KEY`")->option_text("KEY");
  app.add_option("--system", config.system_prompt, "system message")->option_text("TEXT");
  app.add_option("--max-tokens", config.max_tokens, "longest answer")->check(CLI::Range(1, 1 << 24))->option_text("N");
  app.add_option("--temperature", config.temperature, "0: always the likeliest token")
      ->check(within(0, 2))->option_text("T");
  app.footer("Options after -- go to the server that is started, e.g. -- --threads 4");
  auto help = run_parser(app, args);
  if (!help) return fail(help.error());
  if (help->has_value()) return CommandLine(PrintAndExit{**help});
  if (config.base_url.empty() && config.model.empty()) {
    return fail(StatusCode::kInvalidArgument,
                "chat needs --model PATH to start a server, or --base-url http://host:port");
  }
  if (!config.base_url.empty() && !config.server_args.empty()) {
    return fail(StatusCode::kInvalidArgument,
                "options after -- are for a server that chat starts; --base-url attaches to one");
  }
  if (config.base_url.empty()) {
    if (Status status = check_model_path(config.model); !status.ok()) return fail(status);
  }
  return CommandLine(std::move(config));
}

Expected<CommandLine> parse_tune(const std::vector<std::string>& args) {
  CLI::App app("Measures how the attention kernels are best cut on this machine's GPU, and writes the table.", "tailrace tune");
  TuneConfig config;
  std::string device = "cuda";
  app.add_option("--device", device, "cuda")->check(CLI::IsMember({"cuda"}))->option_text("cuda");
  app.add_option("--gpu", config.gpu, "which GPU, from 0")->check(CLI::Range(0, 1023))->option_text("N");
  app.add_option("--model,--model-path", config.model, "tune for this model's attention (default: a list of models)")
      ->option_text("PATH");
  app.add_option("--out", config.out, "file to write (default: the GPU's name .json, here)")->option_text("FILE");
  auto help = run_parser(app, args);
  if (!help) return fail(help.error());
  if (help->has_value()) return CommandLine(PrintAndExit{**help});
  if (!config.model.empty()) {
    if (Status status = check_model_path(config.model); !status.ok()) return fail(status);
  }
  return CommandLine(std::move(config));
}

Expected<CommandLine> parse_bench(const std::vector<std::string>& args) {
  if (args.empty() || args[0] != "decode") return fail(StatusCode::kInvalidArgument, "say what to measure: tailrace bench decode ...");
  CLI::App app("Measures decode steps on real prefills of random prompts, each row its own.", "tailrace bench decode");
  BenchConfig config;
  app.add_option("--model,--model-path", config.model, "Hugging Face directory or .gguf file")->required()->option_text("PATH");
  add_choice(app, "--load-format", config.dummy_weights, {{"auto", false}, {"dummy", true}}, "dummy: random weights, config.json is enough");
  add_choice(app, "--requantize", config.requantize_dense, {{"none", false}, {"dense=fp8", true}}, "as of serve");
  add_choice(app, "--kv-cache-dtype", config.kv_format, kv_cache_dtypes(), "as of serve");
  app.add_option("--device", config.device, "auto: a GPU where this build can use one")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--gpu", config.gpu, "which GPU, from 0")->check(CLI::Range(0, 1023))->option_text("N");
  app.add_option("--contexts", config.contexts, "tokens of prompt and answer together (default 1k,8k,32k)")->option_text("N,N");
  app.add_option("--batch", config.batch, "rows decoded together (default 1)")->option_text("N,N");
  app.add_option("--steps", config.steps, "tokens decoded (default 128)")->check(CLI::Range(2, 1 << 20))->option_text("N");
  app.add_flag("--per-op", config.per_op, "on a GPU, also where a step's time goes");
  app.add_option("--random-seed", config.seed, "of prompts, sampling and dummy weights")->option_text("N");
  auto help = run_parser(app, std::vector<std::string>(args.begin() + 1, args.end()));
  if (!help) return fail(help.error());
  if (help->has_value()) return CommandLine(PrintAndExit{**help});
  if (Status status = check_model_path(config.model); !status.ok()) return fail(status);
  return CommandLine(std::move(config));
}

Expected<CommandLine> parse_launch(const std::vector<std::string>& args) {
  CLI::App app(
      "Prints the configuration that points a coding agent at a running server; --write puts it into the agent's "
      "file.",
      "tailrace launch");
  LaunchConfig config;
  int32_t port = 0;
  add_choice(app, "agent", config.agent,
             {{"codex", AgentKind::kCodex}, {"claude", AgentKind::kClaude}, {"opencode", AgentKind::kOpencode}},
             "the agent to point here")
      ->required();
  auto* url = app.add_option("--base-url", config.base_url, "the server (default http://127.0.0.1:8000)")
                  ->option_text("http://HOST:PORT");
  app.add_option("--port", port, "the server's port on this machine")
      ->check(CLI::Range(1, 65535))
      ->excludes(url)
      ->option_text("N");
  app.add_option("--model", config.model, "the served model's name (default: what the server says)")
      ->option_text("NAME");
  app.add_option("--api-key", config.api_key, "the server's key; it is written into the file")->option_text("KEY");
  auto* file = app.add_option("--file", config.file, "the agent's configuration file (default: the user's own)")
                   ->option_text("FILE");
  app.add_option("--profile", config.profile, "codex: write this profile, for `codex --profile NAME`")
      ->excludes(file)
      ->option_text("NAME");
  app.add_flag("--write", config.write, "write it into the file; what was there is kept beside it as FILE.bak");
  auto help = run_parser(app, args);
  if (!help) return fail(help.error());
  if (help->has_value()) return CommandLine(PrintAndExit{**help});
  if (port > 0) config.base_url = "http://127.0.0.1:" + std::to_string(port);
  if (Status status = settle_launch(config); !status.ok()) return fail(status);
  return CommandLine(std::move(config));
}

}  // namespace

Expected<CommandLine> parse_command_line(const std::vector<std::string>& args,
                                         const std::vector<std::string>& environment, const BuildFacts& facts) {
  if (Status status = check_environment(environment); !status.ok()) return fail(status);
  if (args.empty()) {
    return fail(StatusCode::kInvalidArgument,
                "say what to do: tailrace serve|chat|launch|inspect|tune|bench ... (tailrace --help)");
  }
  const std::string& command = args[0];
  const std::vector<std::string> rest(args.begin() + 1, args.end());
  if (command == "serve") return parse_serve(rest, facts, false);
  if (command == "inspect") return parse_serve(rest, facts, true);
  if (command == "chat") return parse_chat(rest);
  if (command == "tune") return parse_tune(rest);
  if (command == "bench") return parse_bench(rest);
  if (command == "launch") return parse_launch(rest);
  if (command == "--help" || command == "-h" || command == "help") return CommandLine(PrintAndExit{kUsage});
  if (command == "--version") return CommandLine(PrintAndExit{"tailrace " + facts.version + "\n"});
  return fail(StatusCode::kInvalidArgument,
              "unknown command '" + command + "': one of serve, chat, launch, inspect, tune, bench, --version, --help");
}

}  // namespace tailrace
