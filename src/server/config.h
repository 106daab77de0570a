// The command line: every option of serve, chat, inspect and tune, parsed and checked into plain structs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "base/format.h"
#include "base/status.h"
#include "output/output_format.h"

namespace tailrace {

enum class DeviceChoice { kAuto, kCpu, kCuda };
enum class AttentionBackendChoice { kAuto, kCpu, kCuda, kReference };
enum class CacheType { kRadix, kNaive };
enum class MixedChoice { kSplit, kFold, kOff };
enum class MoeStrategy { kFused };  // every expert resident on the device
enum class StagingChoice { kDevice, kPacked, kPinned, kBlocking };
enum class LoadFormat { kAuto, kDummy };
enum class LogFormat { kText, kJson };
enum class LogLevel { kError, kWarning, kInfo, kDebug };

struct ModelOptions {
  std::string path;                  // --model: a Hugging Face directory or a .gguf file
  std::string served_name;           // --served-model-name; default: the path's last component
  int32_t context_length = 0;        // 0: the model's own
  LoadFormat load_format = LoadFormat::kAuto;
  bool requantize_dense = false;     // --requantize dense=fp8
  ToolFormat tool_call_parser = ToolFormat::kAuto;           // how the model writes calls
  ReasoningFormat reasoning_parser = ReasoningFormat::kAuto; // and reasoning; auto: from the checkpoint
};

struct EngineOptions {
  DeviceChoice device = DeviceChoice::kAuto;  // parsed: kCpu or kCuda, what `auto` came to
  std::string device_reason;         // the GPU's name, or why `auto` found none; empty when --device cpu was said
  AttentionBackendChoice attention_backend = AttentionBackendChoice::kAuto;
  int32_t threads = 0;               // CPU kernels; 0: all cores
  int32_t max_running_requests = 0;  // rows of a step; 0: derived from the device (CPU 16, CUDA 64)
  int32_t chunked_prefill_size = 0;  // ceiling of a step's prefill tokens; 0: derived
  double mem_fraction_static = 0.0;  // share of the device's memory for weights and KV; 0: derived (CPU 0.5, CUDA 0.9)
  int64_t max_total_tokens = 0;      // tokens of the full-attention KV pool; 0: what the memory allows
  int32_t cuda_graph_max_bs = 0;     // decode rows of the largest captured step; 0: derived (64)
  CacheType cache_type = CacheType::kRadix;
  Format kv_format = Format::kBF16;  // --kv-cache-dtype; kF8E4M3: fp8
  MixedChoice mixed = MixedChoice::kSplit;
  MoeStrategy moe_strategy = MoeStrategy::kFused;
  bool overlap = true;
  StagingChoice debug_staging = StagingChoice::kDevice;  // how a step's metadata reaches the device (batch/staging.h)
  int32_t kv_splits = 0;             // 0: chosen per step
  uint64_t random_seed = 0;          // dummy weights, and the seeds drawn for requests that give none
  bool has_random_seed = false;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;              // 0: any free port
  std::vector<std::string> api_keys; // none here nor in the file: everybody may ask
  std::string api_key_file;          // --api-key-file; empty: none
  int32_t max_running_per_key = 0;   // sequences of one key at a time, unless the file says another number; 0: no bound
  std::vector<std::string> cors_origins;  // --cors-allow-origin: pages that may use the API from a browser
  std::vector<std::string> allowed_hosts;  // --allowed-hosts: names of this server besides localhost (page_guard.h)
  int32_t io_threads = 2;
  int32_t tokenizer_threads = 0;     // 0: min(4, cores)
  int32_t max_connections = 4096;
  int64_t max_body_bytes = int64_t{32} << 20;
  int64_t max_total_body_bytes = int64_t{512} << 20;  // of all requests together, with what is parsed from them
  int32_t header_timeout_s = 10;     // from the first byte of a request to its last header, and to its last body byte: 60 s
  int32_t body_timeout_s = 60;
  int32_t keep_alive_s = 75;         // an idle connection is closed after this
  int64_t max_unsent_bytes = int64_t{1} << 20;  // per connection; a reader slower than this is cut off
};

struct LimitOptions {
  int32_t max_queued_requests = 256;  // accepted but not running; beyond: 503 with Retry-After
  int64_t max_stored_responses = 1024;  // answers of /v1/responses that can be read and continued; 0: none is stored
  int64_t max_stored_response_bytes = int64_t{64} << 20;  // of all of them
  double request_timeout_s = 0;       // 0: none
  double shutdown_timeout_s = 30;     // SIGTERM: running requests may finish for this long
  double health_timeout_s = 60;       // a busy engine without a heartbeat for this long is reported as hung
};

struct ServeConfig {
  ModelOptions model;
  EngineOptions engine;
  HttpOptions http;
  LimitOptions limits;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

struct ChatConfig {
  std::string base_url;              // server to attach to, http://host:port; empty: start one for `model`
  std::string model;                 // path: starts a server; with url: name sent in requests ("" asks /v1/models)
  std::string api_key;
  std::string system_prompt;
  int32_t max_tokens = 0;            // 0: what the context leaves
  double temperature = -1;           // < 0: the server's default
  std::vector<std::string> server_args;  // after "--": passed to the server that is started
};

struct InspectConfig {
  ServeConfig serve;                 // the same options decide the ledger
};

struct TuneConfig {
  int32_t gpu = 0;
  std::string model;                 // its shapes of attention; empty: a built-in list's
  std::string out;                   // file; empty: named after the GPU
};

// `bench decode`.
struct BenchConfig {
  std::string model;
  bool dummy_weights = false;        // --load-format dummy
  bool requantize_dense = false;     // --requantize dense=fp8
  Format kv_format = Format::kBF16;  // --kv-cache-dtype
  std::string device = "auto";       // auto, cpu, cuda
  int32_t gpu = 0;
  std::string contexts = "1k,8k,32k", batch = "1";
  int32_t steps = 128;
  bool per_op = false;
  uint64_t seed = 1;
};

enum class AgentKind { kCodex, kClaude, kOpencode };

// `launch`: the configuration that points a coding agent at a server.
struct LaunchConfig {
  AgentKind agent = AgentKind::kCodex;
  std::string base_url = "http://127.0.0.1:8000";
  std::string model;                 // as the server names it; empty: what the server says
  std::string api_key;
  std::string file;                  // empty: the agent's own
  std::string profile;               // of Codex; empty: none
  bool write = false;                // else only printed
};

// --help or --version: the text to print before exiting with 0.
struct PrintAndExit {
  std::string text;
};

using CommandLine = std::variant<ServeConfig, ChatConfig, InspectConfig, TuneConfig, BenchConfig, LaunchConfig, PrintAndExit>;

// What this build and machine can do; decides which combinations are refused.
struct BuildFacts {
  // The name of the GPU that this build can use, or why there is none. Asked once, and only when the flags leave it open.
  std::function<Expected<std::string>()> find_gpu = [] {
    return Expected<std::string>(fail(StatusCode::kUnavailable, "this build has no CUDA backend"));
  };
  std::string version = "0.1.0";
};

// Parses argv (without the program's name), the --config file and checks the environment (name=value strings) for
// TAILRACE_* variables, none of which exist. The error's message is one line for a person; the process should print it
// and exit with code 2.
Expected<CommandLine> parse_command_line(const std::vector<std::string>& args,
                                         const std::vector<std::string>& environment, const BuildFacts& facts);

}  // namespace tailrace
