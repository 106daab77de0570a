#include "server/config_check.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>

#include "server/json.h"
#include "server/page_guard.h"
#include "server/url.h"

namespace tailrace {
namespace {

struct ForeignFlag {
  const char* theirs;
  const char* advice;
};

constexpr ForeignFlag kForeignFlags[] = {
    {"--max-model-len", "say --context-length"},
    {"--max-num-seqs", "say --max-running-requests"},
    {"--gpu-memory-utilization", "say --mem-fraction-static"},
    {"--max-num-batched-tokens", "say --chunked-prefill-size"},
    {"--long-prefill-token-threshold", "say --chunked-prefill-size"},
    {"--no-enable-prefix-caching", "say --cache-type naive"},
    {"--disable-radix-cache", "say --cache-type naive"},
    {"--disable-overlap-schedule", "say --overlap off"},
    {"--enable-mixed-chunk", "mixed steps are the default; --mixed off turns them off"},
    {"--cuda-graph-sizes", "say --cuda-graph-max-bs"},
    {"--seed", "say --random-seed"},
    {"--ctx-size", "say --context-length"},
    {"--tensor-parallel-size", "one process serves one device; leave it out"},
    {"--tp-size", "one process serves one device; leave it out"},
    {"--tokenizer-path", "the tokenizer is read from the model's own files; leave it out"},
    {"--tokenizer", "the tokenizer is read from the model's own files; leave it out"},
    {"--quantization", "weights are computed in the form they are stored in; leave it out"},
    {"--dtype", "weights are computed in the form they are stored in; leave it out"},
    {"--trust-remote-code", "no code is ever loaded from a checkpoint; leave it out"},
};

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// org/name of the Hugging Face hub: one slash, and only characters that a repository name may have.
bool looks_like_hub_id(const std::string& path) {
  const auto slash = path.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == path.size()) return false;
  if (path.find('/', slash + 1) != std::string::npos || path[0] == '.' || path[0] == '~') return false;
  if (path.size() > 5 && path.compare(path.size() - 5, 5, ".gguf") == 0) return false;
  return std::all_of(path.begin(), path.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
  });
}

Status check_access(const HttpOptions& http) {
  for (const std::string& key : http.api_keys) {
    if (key.empty()) return invalid("--api-key is empty, which would leave the server open; give a key or leave the flag out");
  }
  if (http.max_running_per_key > 0 && http.api_keys.empty() && http.api_key_file.empty()) {
    return invalid("--max-running-requests-per-key has no effect without --api-key or --api-key-file: leave it out");
  }
  for (const std::string& origin : http.cors_origins) {
    if (Status status = check_origin(origin); !status.ok()) return status;
  }
  for (const std::string& name : http.allowed_hosts) {
    if (Status status = check_allowed_host(name); !status.ok()) return status;
  }
  if (!http.allowed_hosts.empty() && (!http.api_keys.empty() || !http.api_key_file.empty() || !is_loopback(http.host))) {
    return invalid("--allowed-hosts has no effect beside keys (--api-key, --api-key-file), nor with --host " + http.host +
                   " unless that is a loopback address: leave it out");
  }
  return Status();
}

}  // namespace

Status check_environment(const std::vector<std::string>& environment) {
  constexpr std::string_view kPrefix = "TAILRACE_";
  for (const auto& entry : environment) {
    if (entry.compare(0, kPrefix.size(), kPrefix) != 0) continue;
    const std::string name = entry.substr(0, entry.find('='));
    return invalid("environment variable " + name +
                   " is not read: unset it and use flags or --config FILE (tailrace serve --help); where "
                   "Kubernetes sets it for a service called tailrace, say enableServiceLinks: false");
  }
  return Status();
}

Status explain_foreign_flag(const std::string& arg) {
  const std::string name = arg.substr(0, arg.find('='));
  for (const auto& flag : kForeignFlags) {
    if (name == flag.theirs) return invalid("unknown flag " + name + ": " + flag.advice);
  }
  return Status();
}

Status unknown_flag(const std::string& arg, const std::vector<std::string>& known, const std::string& command) {
  const std::string name = arg.substr(0, arg.find('='));
  if (name.rfind("-", 0) != 0) {
    return invalid("unexpected argument '" + name + "': options start with -- (" + command + " --help)");
  }
  std::string nearest;
  size_t best = 4;
  for (const auto& candidate : known) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best) best = distance, nearest = candidate;
  }
  return invalid("unknown flag " + name + (nearest.empty() ? "" : ": did you mean " + nearest + "?") + " (" + command +
                 " --help lists all)");
}

Status check_model_path(const std::string& path) {
  if (path.empty()) return invalid("--model PATH is needed: a Hugging Face directory or a .gguf file");
  std::error_code error;
  if (std::filesystem::exists(path, error)) return Status();
  if (looks_like_hub_id(path)) {
    const std::string dir = "models/" + path.substr(path.find('/') + 1);
    return invalid("--model " + path + " is a hub id, not a path: download it first with `huggingface-cli download " +
                   path + " --local-dir " + dir + "` and say --model " + dir);
  }
  return invalid("--model " + path + ": no such file or directory");
}

Status parse_kv_splits(const std::string& text, int32_t& out) {
  out = 0;
  if (text == "auto") return Status();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || out < 1 || out > 256) {
    return invalid("--kv-splits " + text + ": auto or 1..256");
  }
  return Status();
}

Status settle_device(EngineOptions& engine, const BuildFacts& facts) {
  const bool cpu_kernels = engine.attention_backend == AttentionBackendChoice::kCpu ||
                           engine.attention_backend == AttentionBackendChoice::kReference;
  const bool asked = engine.device == DeviceChoice::kCuda || engine.attention_backend == AttentionBackendChoice::kCuda;
  if (engine.device == DeviceChoice::kCpu || cpu_kernels) {
    engine.device = DeviceChoice::kCpu;
  } else {
    const auto gpu = facts.find_gpu();
    engine.device_reason = gpu ? *gpu : gpu.error().message();
    if (!gpu && asked) {
      return invalid(std::string(engine.device == DeviceChoice::kCuda ? "--device" : "--attention-backend") +
                     " cuda: " + engine.device_reason + "; leave it out to run on the CPU");
    }
    engine.device = gpu ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  }
  if (engine.cuda_graph_max_bs > 0 && engine.device == DeviceChoice::kCpu) {
    return invalid("--cuda-graph-max-bs: there are no CUDA graphs on the CPU device" +
                   (engine.device_reason.empty() ? "" : " (" + engine.device_reason + ")") + "; leave it out");
  }
  if (engine.threads > 0 && engine.device == DeviceChoice::kCuda) {
    return invalid("--threads sets the CPU kernels' threads and has no effect on a GPU: leave it out, or say --device cpu");
  }
  return Status();
}

Status check_serve_config(const ServeConfig& config) {
  const auto& engine = config.engine;
  if (engine.device == DeviceChoice::kCpu && engine.attention_backend == AttentionBackendChoice::kCuda) {
    return invalid("--attention-backend cuda cannot run on --device cpu: use --attention-backend cpu or --device cuda");
  }
  if (engine.device == DeviceChoice::kCuda && (engine.attention_backend == AttentionBackendChoice::kCpu ||
                                               engine.attention_backend == AttentionBackendChoice::kReference)) {
    return invalid("--attention-backend cpu|reference cannot run on --device cuda: use --device cpu");
  }
  if (engine.mixed == MixedChoice::kFold && engine.attention_backend == AttentionBackendChoice::kReference) {
    return invalid("--mixed fold compares attention kernels, and the reference backend has only one: use "
                   "--attention-backend cpu, or --mixed split|off");
  }
  if (engine.kv_splits > 0 && engine.attention_backend == AttentionBackendChoice::kReference) {
    return invalid("--kv-splits has no meaning for the reference backend, which does not split: leave it out");
  }
  if (engine.mem_fraction_static > 0 && engine.max_total_tokens > 0) {
    return invalid("--mem-fraction-static and --max-total-tokens both size the KV pool: give one of them");
  }
  if (config.model.context_length > 0 && engine.max_total_tokens > 0 &&
      engine.max_total_tokens < config.model.context_length) {
    return invalid("--max-total-tokens " + std::to_string(engine.max_total_tokens) + " cannot hold one request of --context-length " +
                   std::to_string(config.model.context_length) + ": raise the first or lower the second");
  }
  if (config.http.max_total_body_bytes < config.http.max_body_bytes) {
    return invalid("--max-total-body-bytes " + std::to_string(config.http.max_total_body_bytes) +
                   " cannot hold one body of --max-body-bytes " + std::to_string(config.http.max_body_bytes) +
                   ": raise the first or lower the second");
  }
  if (Status status = check_access(config.http); !status.ok()) return status;
  return check_model_path(config.model.path);
}

std::string default_served_name(const std::string& path) {
  auto name = std::filesystem::path(path).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  return name.extension() == ".gguf" ? name.stem().string() : name.filename().string();
}

std::string one_line(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

Status settle_launch(LaunchConfig& config) {
  const auto url = parse_url(config.base_url);
  if (!url) return Status(url.error().code(), "--base-url " + config.base_url + ": " + url.error().message());
  config.base_url = to_string(*url);
  const auto printable = [](char c) { return c > ' ' && c <= '~'; };  // it goes into a header
  if (!std::all_of(config.api_key.begin(), config.api_key.end(), printable))
    return invalid("--api-key: a key that is sent is printable ASCII without blanks");
  if (parse_json(dump_json(config.model)).value() != config.model)  // there it has been mended
    return invalid("--model: a name is UTF-8");
  if (!config.profile.empty() && config.agent != AgentKind::kCodex)
    return invalid("--profile: only codex has profiles");
  const auto plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_'; };
  if (!std::all_of(config.profile.begin(), config.profile.end(), plain))
    return invalid("--profile: a name has letters, digits, '-' and '_'");
  return Status();
}

}  // namespace tailrace
