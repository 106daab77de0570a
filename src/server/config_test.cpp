#include "server/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tailrace {
namespace {

// A model path that exists, and a place for config files.
struct Paths {
  Paths() {
    dir = std::filesystem::temp_directory_path() / ("tailrace_config_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(dir / "My-Model");
    model = (dir / "My-Model").string();
  }
  ~Paths() { std::filesystem::remove_all(dir); }
  std::string write(const std::string& text) const {
    std::ofstream(dir / "serve.conf") << text;
    return (dir / "serve.conf").string();
  }
  std::filesystem::path dir;
  std::string model;
};

ServeConfig parse_ok(std::vector<std::string> args, const BuildFacts& facts = {}) {
  args.insert(args.begin(), "serve");
  auto parsed = parse_command_line(args, {}, facts);
  EXPECT_TRUE(parsed.has_value()) << (parsed ? "" : parsed.error().message());
  return parsed ? std::get<ServeConfig>(*parsed) : ServeConfig{};
}

std::string parse_error(std::vector<std::string> args, const std::vector<std::string>& environment = {},
                        const BuildFacts& facts = {}) {
  args.insert(args.begin(), "serve");
  auto parsed = parse_command_line(args, environment, facts);
  EXPECT_FALSE(parsed.has_value());
  const std::string message = parsed ? "" : parsed.error().message();
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

BuildFacts with_gpu() {
  return {.find_gpu = [] { return Expected<std::string>("NVIDIA Test GPU"); }};
}
BuildFacts without_gpu() {
  return {.find_gpu = [] { return Expected<std::string>(fail(StatusCode::kUnavailable, "this machine has no NVIDIA GPU")); }};
}

bool mentions(const std::string& message, const std::string& text) { return message.find(text) != std::string::npos; }

TEST(Config, defaults) {
  Paths paths;
  const ServeConfig config = parse_ok({"--model", paths.model});
  EXPECT_EQ(config.http.host, "127.0.0.1");
  EXPECT_EQ(config.http.port, 8000);
  EXPECT_EQ(config.model.served_name, "My-Model");
  EXPECT_EQ(config.engine.mixed, MixedChoice::kSplit);
  EXPECT_TRUE(config.engine.overlap);
  EXPECT_EQ(config.engine.kv_splits, 0);
  EXPECT_EQ(config.engine.kv_format, Format::kBF16);
  EXPECT_FALSE(config.engine.has_random_seed);
}

TEST(Config, every_flag_reaches_its_field) {
  Paths paths;
  const ServeConfig config = parse_ok(
      {"--model-path", paths.model, "--served-model-name", "name", "--host", "0.0.0.0", "--port", "9", "--api-key", "k", "--api-key", "l",
       "--api-key-file", "keys", "--max-running-requests-per-key", "13", "--cors-allow-origin", "http://a:1",
       "--cors-allow-origin", "*", "--log-format", "json",
       "--max-running-requests", "3", "--max-queued-requests", "4", "--chunked-prefill-size", "5", "--max-seq-len-override",
       "600", "--max-total-tokens", "700", "--cache-type", "naive", "--attention-backend", "cpu", "--mixed", "off",
       "--overlap", "off", "--moe-strategy", "fused", "--debug-staging", "blocking", "--kv-splits", "8",
       "--load-format", "dummy", "--requantize", "dense=fp8", "--kv-cache-dtype", "fp8",
       "--text-model-only", "--tool-call-parser", "qwen3_coder", "--reasoning-parser", "none",
       "--random-seed", "10", "--threads", "11",
       "--request-timeout", "1.5", "--log-level", "debug", "--device", "cpu", "--shutdown-timeout", "2",
       "--health-timeout", "3", "--tokenizer-threads", "2", "--max-connections", "12", "--max-body-bytes", "2048",
       "--max-total-body-bytes", "4096", "--max-stored-responses", "0", "--max-stored-response-bytes", "8192"});
  EXPECT_EQ(config.model.served_name, "name");
  EXPECT_EQ(config.model.context_length, 600);
  EXPECT_EQ(config.model.load_format, LoadFormat::kDummy);
  EXPECT_TRUE(config.model.requantize_dense);
  EXPECT_EQ(config.engine.kv_format, Format::kF8E4M3);
  EXPECT_EQ(config.model.tool_call_parser, ToolFormat::kQwenCoder);
  EXPECT_EQ(config.model.reasoning_parser, ReasoningFormat::kNone);
  EXPECT_EQ(config.http.host, "0.0.0.0");
  EXPECT_EQ(config.http.port, 9);
  EXPECT_EQ(config.http.api_keys, (std::vector<std::string>{"k", "l"}));
  EXPECT_EQ(config.http.api_key_file, "keys");
  EXPECT_EQ(config.http.max_running_per_key, 13);
  EXPECT_EQ(config.http.cors_origins, (std::vector<std::string>{"http://a:1", "*"}));
  EXPECT_EQ(config.log_format, LogFormat::kJson);
  EXPECT_EQ(config.http.max_connections, 12);
  EXPECT_EQ(config.http.max_body_bytes, 2048);
  EXPECT_EQ(config.http.max_total_body_bytes, 4096);
  EXPECT_EQ(config.http.tokenizer_threads, 2);
  EXPECT_EQ(config.limits.max_queued_requests, 4);
  EXPECT_EQ(config.limits.max_stored_responses, 0);
  EXPECT_EQ(config.limits.max_stored_response_bytes, 8192);
  EXPECT_EQ(config.limits.request_timeout_s, 1.5);
  EXPECT_EQ(config.limits.shutdown_timeout_s, 2);
  EXPECT_EQ(config.limits.health_timeout_s, 3);
  EXPECT_EQ(config.engine.max_running_requests, 3);
  EXPECT_EQ(config.engine.chunked_prefill_size, 5);
  EXPECT_EQ(config.engine.max_total_tokens, 700);
  EXPECT_EQ(config.engine.cache_type, CacheType::kNaive);
  EXPECT_EQ(config.engine.attention_backend, AttentionBackendChoice::kCpu);
  EXPECT_EQ(config.engine.mixed, MixedChoice::kOff);
  EXPECT_EQ(config.engine.debug_staging, StagingChoice::kBlocking);
  EXPECT_FALSE(config.engine.overlap);
  EXPECT_EQ(config.engine.moe_strategy, MoeStrategy::kFused);
  EXPECT_EQ(config.engine.kv_splits, 8);
  EXPECT_TRUE(config.engine.has_random_seed);
  EXPECT_EQ(config.engine.random_seed, 10u);
  EXPECT_EQ(config.engine.threads, 11);
  EXPECT_EQ(config.engine.device, DeviceChoice::kCpu);
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
  EXPECT_EQ(parse_ok({"--model", paths.model, "--random-seed", "18446744073709551615"}).engine.random_seed, UINT64_MAX);
  EXPECT_EQ(parse_ok({"--model", paths.model}).http.max_total_body_bytes, int64_t{512} << 20);
  EXPECT_EQ(parse_ok({"--model", paths.model, "--max-body-bytes", "1073741824"}).http.max_total_body_bytes, int64_t{4} << 30);
  EXPECT_EQ(parse_ok({"--model", paths.model, "--host", "127.0.0.2", "--allowed-hosts", "box", "--allowed-hosts", "b.lan"}).http.allowed_hosts,
            (std::vector<std::string>{"box", "b.lan"}));
  EXPECT_EQ(parse_ok({"--model", paths.model, "--mem-fraction-static", "0.5"}).engine.mem_fraction_static, 0.5);
}

TEST(Config, unknown_flags_are_errors_with_advice) {
  Paths paths;
  EXPECT_TRUE(mentions(parse_error({"--model", paths.model, "--prot", "80"}), "--port"));
  EXPECT_TRUE(mentions(parse_error({"--model", paths.model, "--max-num-seqs", "8"}), "--max-running-requests"));
  EXPECT_TRUE(mentions(parse_error({"--model", paths.model, "--max-model-len=8"}), "--context-length"));
  EXPECT_TRUE(mentions(parse_error({"--model", paths.model, "stray"}), "stray"));
}

TEST(Config, another_word_and_a_choices_number_are_answered_with_the_words) {
  Paths paths;
  for (const std::string word : {"sideways", "1"}) {
    EXPECT_TRUE(mentions(parse_error({"--model", paths.model, "--mixed", word}), "--mixed: must be fold|off|split, not " + word));
  }
  EXPECT_TRUE(mentions(parse_error({"--model", paths.model, "--tool-call-parser", "hermes"}),
                       "must be auto|gemma4|gpt-oss|llama3|mistral|none|qwen|qwen3_coder, not hermes"));
  EXPECT_TRUE(mentions(parse_error({"--model", paths.model, "--reasoning-parser", "r1"}),
                       "must be auto|gemma4|gpt-oss|mistral|none|qwen3, not r1"));
}

TEST(Config, bad_values_name_the_flag) {
  Paths paths;
  EXPECT_TRUE(mentions(parse_error({"--model", paths.model, "--moe-strategy", "offload"}),
                       "--moe-strategy: must be fused, not offload"));
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--port", "70000"}, {"--port", "x"}, {"--mixed", "maybe"}, {"--debug-staging", "fast"},
           {"--kv-splits", "0"}, {"--kv-splits", "many"}, {"--moe-strategy", "offload"}, {"--moe-strategy", ""},
           {"--mem-fraction-static", "1.5"}, {"--mem-fraction-static", "nan"}, {"--max-running-requests", "0"},
           {"--context-length", "-5"}, {"--threads", "0"}, {"--request-timeout", "-1"}, {"--request-timeout", "nan"},
           {"--shutdown-timeout", "inf"}, {"--health-timeout", "5s"}, {"--port"},
           {"--api-key", ""}, {"--api-key"}, {"--log-format", "xml"}, {"--max-running-requests-per-key", "0"},
           {"--cors-allow-origin", "page"}, {"--cors-allow-origin", "http://page/"}, {"--cors-allow-origin", "http://"},
           {"--allowed-hosts", "http://a"}, {"--allowed-hosts", "a:80"}, {"--allowed-hosts", "*"}, {"--allowed-hosts", ""},
           {"--cors-allow-origin", "://a"}, {"--cors-allow-origin", "http://a b"}, {"--cors-allow-origin", "http://a\r\nX: y"}}) {
    std::vector<std::string> all = {"--model", paths.model};
    all.insert(all.end(), args.begin(), args.end());
    EXPECT_TRUE(mentions(parse_error(all), args[0])) << args[0];
  }
}

TEST(Config, environment_variables_are_not_read) {
  Paths paths;
  const std::string message = parse_error({"--model", paths.model}, {"HOME=/root", "TAILRACE_PORT=1"});
  EXPECT_TRUE(mentions(message, "TAILRACE_PORT"));
}

TEST(Config, combinations_that_cannot_work) {
  Paths paths;
  const auto error = [&](std::vector<std::string> args, bool cuda) {
    args.insert(args.begin(), {"--model", paths.model});
    return parse_error(args, {}, cuda ? with_gpu() : without_gpu());
  };
  EXPECT_TRUE(mentions(error({"--max-total-body-bytes", "4096"}, false), "--max-body-bytes"));
  EXPECT_TRUE(mentions(error({"--attention-backend", "cuda"}, false), "--attention-backend cuda"));
  EXPECT_TRUE(mentions(error({"--device", "cuda"}, false), "--device cuda"));
  EXPECT_TRUE(mentions(error({"--device", "cpu", "--attention-backend", "cuda"}, true), "--device cpu"));
  EXPECT_TRUE(mentions(error({"--device", "cuda", "--attention-backend", "reference"}, true), "--device cuda"));
  EXPECT_TRUE(mentions(error({"--cuda-graph-max-bs", "8"}, false), "--cuda-graph-max-bs"));
  EXPECT_TRUE(mentions(error({"--threads", "2"}, true), "--threads"));
  EXPECT_TRUE(mentions(error({"--attention-backend", "cuda", "--threads", "2"}, true), "--threads"));
  EXPECT_TRUE(mentions(error({"--mixed", "fold", "--attention-backend", "reference"}, false), "--mixed fold"));
  EXPECT_TRUE(mentions(error({"--kv-splits", "4", "--attention-backend", "reference"}, false), "--kv-splits"));
  for (const char* seed : {"-1", "18446744073709551616", "x", "1.5"}) {
    EXPECT_TRUE(mentions(error({"--random-seed", seed}, false), "from 0 to 18446744073709551615, not " + std::string(seed)));
  }
  EXPECT_TRUE(mentions(error({"--port", "99999"}, false), "65535"));
  EXPECT_TRUE(mentions(error({"--allowed-hosts", "box", "--api-key", "k"}, false), "--allowed-hosts"));
  EXPECT_TRUE(mentions(error({"--allowed-hosts", "box", "--host", "0.0.0.0"}, false), "--allowed-hosts"));
  EXPECT_TRUE(mentions(error({"--max-running-requests-per-key", "2"}, false), "--api-key"));
  EXPECT_TRUE(mentions(error({"--max-total-tokens", "100", "--context-length", "200"}, false), "--max-total-tokens"));
  EXPECT_TRUE(mentions(error({"--max-total-tokens", "100", "--mem-fraction-static", "0.5"}, false), "one of them"));
}

TEST(Config, auto_takes_a_gpu_where_there_is_one) {
  Paths paths;
  const ServeConfig on_gpu = parse_ok({"--model", paths.model, "--cuda-graph-max-bs", "8"}, with_gpu());
  EXPECT_EQ(on_gpu.engine.device, DeviceChoice::kCuda);
  EXPECT_EQ(on_gpu.engine.device_reason, "NVIDIA Test GPU");
  EXPECT_EQ(on_gpu.engine.cuda_graph_max_bs, 8);
  const ServeConfig on_cpu = parse_ok({"--model", paths.model}, without_gpu());
  EXPECT_EQ(on_cpu.engine.device, DeviceChoice::kCpu);
  EXPECT_EQ(on_cpu.engine.device_reason, "this machine has no NVIDIA GPU");
}

TEST(Config, no_gpu_is_looked_for_when_the_flags_settle_it) {
  Paths paths;
  const BuildFacts facts{.find_gpu = []() -> Expected<std::string> {
    ADD_FAILURE() << "looked for a GPU";
    return "NVIDIA Test GPU";
  }};
  EXPECT_EQ(parse_ok({"--model", paths.model, "--device", "cpu"}, facts).engine.device, DeviceChoice::kCpu);
  EXPECT_EQ(parse_ok({"--model", paths.model, "--attention-backend", "cpu"}, facts).engine.device, DeviceChoice::kCpu);
  EXPECT_EQ(parse_ok({"--model", paths.model, "--attention-backend", "reference"}, facts).engine.device, DeviceChoice::kCpu);
  parse_error({"--model", paths.model, "--device", "cpu", "--attention-backend", "cuda"}, {}, facts);
}

TEST(Config, cuda_says_why_it_cannot_be_had) {
  Paths paths;
  for (const char* flag : {"--device", "--attention-backend"}) {
    const std::string message = parse_error({"--model", paths.model, flag, "cuda"}, {}, without_gpu());
    EXPECT_TRUE(mentions(message, std::string(flag) + " cuda: this machine has no NVIDIA GPU")) << message;
    EXPECT_EQ(parse_ok({"--model", paths.model, flag, "cuda"}, with_gpu()).engine.device, DeviceChoice::kCuda);
  }
}

TEST(Config, model_paths) {
  EXPECT_TRUE(mentions(parse_error({}), "--model PATH"));
  EXPECT_TRUE(mentions(parse_error({"--model", "Qwen/Qwen3-0.6B"}), "huggingface-cli download Qwen/Qwen3-0.6B"));
  EXPECT_TRUE(mentions(parse_error({"--model", "./no/such/dir"}), "no such file"));
  EXPECT_TRUE(mentions(parse_error({"--model", "dir/model.gguf"}), "no such file"));
}

TEST(Config, file_of_flags) {
  Paths paths;
  const std::string file = paths.write("model = \"" + paths.model + "\"\nport = 81\nmixed = off\n");
  EXPECT_EQ(parse_ok({"--config", file}).http.port, 81);
  EXPECT_EQ(parse_ok({"--config", file}).engine.mixed, MixedChoice::kOff);
  EXPECT_EQ(parse_ok({"--config", file, "--port", "82"}).http.port, 82);  // flags win
  const std::string keys = paths.write("model = \"" + paths.model + "\"\napi-key = [\"a\", \"b\"]\n");
  EXPECT_EQ(parse_ok({"--config", keys}).http.api_keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(mentions(parse_error({"--config", paths.write("model = x\nprot = 5\n")}), "prot"));
  EXPECT_TRUE(mentions(parse_error({"--config", "/no/such/file", "--model", paths.model}), "/no/such/file"));
}

TEST(Config, other_commands) {
  Paths paths;
  const auto parse = [](const std::vector<std::string>& args) { return parse_command_line(args, {}, {}); };
  EXPECT_TRUE(mentions(std::get<PrintAndExit>(*parse({"--version"})).text, "0.1"));
  EXPECT_TRUE(mentions(std::get<PrintAndExit>(*parse({"--help"})).text, "serve"));
  EXPECT_TRUE(mentions(std::get<PrintAndExit>(*parse({"serve", "--help"})).text, "--chunked-prefill-size"));
  EXPECT_EQ(std::get<InspectConfig>(*parse({"inspect", "--model", paths.model})).serve.model.path, paths.model);
  const auto chat = std::get<ChatConfig>(*parse({"chat", "--model", paths.model, "--", "--threads", "2"}));
  EXPECT_EQ(chat.server_args, (std::vector<std::string>{"--threads", "2"}));
  EXPECT_EQ(std::get<ChatConfig>(*parse({"chat", "--base-url", "http://x:1"})).base_url, "http://x:1");
  EXPECT_FALSE(parse({"chat", "--url", "http://x:1"}).has_value());
  EXPECT_FALSE(parse({"chat"}).has_value());
  EXPECT_FALSE(parse({"chat", "--base-url", "http://x:1", "--", "--threads", "2"}).has_value());
  EXPECT_FALSE(parse({}).has_value());
  EXPECT_FALSE(parse({"frobnicate"}).has_value());
}

TEST(Config, launch_takes_an_address_that_agents_can_use) {
  const auto launched = [](std::vector<std::string> args) {
    args.insert(args.begin(), "launch");
    const auto parsed = parse_command_line(args, {}, {});
    return parsed ? std::get<LaunchConfig>(*parsed).base_url : "fault: " + parsed.error().message();
  };
  EXPECT_EQ(launched({"codex"}), "http://127.0.0.1:8000");
  EXPECT_EQ(launched({"claude", "--port", "81"}), "http://127.0.0.1:81");
  EXPECT_EQ(launched({"codex", "--base-url", "https://h/a//", "--profile", "p-1"}), "https://h/a");
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"codex", "--base-url", "h:1"}, {"codex", "--base-url", "http://u:p@h"}, {"codex", "--base-url", "http://h?q"},
           {"codex", "--base-url", "http://h:1/v1"}, {"codex", "--base-url", "http://h:99999"},
           {"codex", "--base-url", "http://h", "--port", "1"}, {"codex", "--port", "0"}, {"codex", "--api-key", "a b"},
           {"codex", "--api-key", "a\n"}, {"codex", "--model", "\xff"}, {"codex", "--profile", "../x"},
           {"claude", "--profile", "x"}, {"codex", "--profile", "x", "--file", "y"}, {"codex", "--url", "http://h"},
           {"emacs"}, {"0"}, {}}) {
    EXPECT_EQ(launched(args).rfind("fault: ", 0), 0u) << testing::PrintToString(args);
  }
}

TEST(Config, bench_takes_a_model_contexts_and_rows) {
  Paths paths;
  const auto parse = [](const std::vector<std::string>& args) { return parse_command_line(args, {}, {}); };
  const auto bench = std::get<BenchConfig>(*parse({"bench", "decode", "--model", paths.model, "--load-format", "dummy", "--contexts", "1k,128k",
                                                   "--batch", "8", "--steps", "16", "--device", "cpu"}));
  EXPECT_TRUE(bench.dummy_weights);
  EXPECT_EQ(bench.contexts, "1k,128k");
  EXPECT_EQ(bench.batch, "8");
  EXPECT_EQ(bench.steps, 16);
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"bench"}, {"bench", "prefill"}, {"bench", "decode"},
                                                {"bench", "decode", "--model", "/nowhere"}, {"bench", "decode", "--model", paths.model, "--steps", "1"}}) {
    EXPECT_FALSE(parse(wrong)) << wrong.size();
  }
}

TEST(Config, tune_takes_a_gpu_a_model_and_a_file) {
  Paths paths;
  const auto parse = [](const std::vector<std::string>& args) { return parse_command_line(args, {}, {}); };
  const auto all = std::get<TuneConfig>(*parse({"tune", "--device", "cuda", "--gpu", "1", "--model", paths.model, "--out", "x.json"}));
  EXPECT_EQ(all.gpu, 1);
  EXPECT_EQ(all.model, paths.model);
  EXPECT_EQ(all.out, "x.json");
  EXPECT_EQ(std::get<TuneConfig>(*parse({"tune"})).model, "");
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"tune", "--device", "cpu"}, {"tune", "--model", "/nowhere"},
                                                {"tune", "--gpu", "-1"}, {"tune", "--port", "1"}}) {
    EXPECT_FALSE(parse(wrong).has_value());
  }
}

}  // namespace
}  // namespace tailrace
