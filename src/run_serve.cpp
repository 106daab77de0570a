// `tailrace serve`: listens at once, loads the model, runs the engine, drains on SIGTERM.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "engine_setup.h"
#include "output/answer_grammar.h"
#include "page_files.h"
#include "run.h"
#include "server/http_server.h"
#include "server_info.h"

namespace tailrace {
namespace {

constexpr std::chrono::milliseconds kFlushPatience(10'000);  // a step lasts seconds at most
constexpr size_t kLoggedSteps = 32768;  // 4 MB: half a minute of steps of a millisecond
constexpr std::chrono::milliseconds kExitGrace(800);  // within --shutdown-timeout + 1 s, all in all

sigset_t handled_signals(bool reloads) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (reloads) sigaddset(&set, SIGHUP);
  return set;
}

// Turns the first SIGINT or SIGTERM into a ready future, and the second into the end of the process. With `reloads`,
// SIGHUP calls what set_reload was given; else it ends the process, as a terminal that closes wants.
class StopSignal {
 public:
  explicit StopSignal(bool reloads) : signals_(handled_signals(reloads)) {
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);  // inherited by every thread that is started later
    thread_ = std::thread([this] { watch(); });
  }
  ~StopSignal() {
    done_ = true;
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  // Called on the signals' thread; at once for a SIGHUP that came while there was none.
  void set_reload(std::function<void()> reload) {
    std::lock_guard lock(mutex_);
    reload_ = std::move(reload);
    if (reload_ && reload_asked_) reload_();
    reload_asked_ = false;
  }
  // While loading there is nothing to drain: a signal ends the process at once.
  void set_loaded() { loaded_ = true; }
  // Waits for the first signal, or until `ended` says that there is nothing to wait for; true for a signal.
  template <typename Ended>
  bool wait(const Ended& ended) {
    auto stopped = stopped_.get_future();
    while (stopped.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
      if (ended()) return false;
    }
    return true;
  }

 private:
  void watch() {
    wait_for_stop();
    if (done_) return;
    if (!loaded_) _exit(0);
    stopped_.set_value();
    wait_for_stop();
    if (!done_) _exit(1);
  }
  void wait_for_stop() {
    for (int signal = SIGHUP; signal == SIGHUP;) {
      sigwait(&signals_, &signal);
      std::lock_guard lock(mutex_);
      if (signal != SIGHUP) continue;
      reload_asked_ = !reload_;
      if (reload_) reload_();
    }
  }

  const sigset_t signals_;
  std::mutex mutex_;
  std::function<void()> reload_;  // guarded by mutex_
  bool reload_asked_ = false;     // the same
  std::atomic<bool> done_{false}, loaded_{false};
  std::promise<void> stopped_;
  std::thread thread_;
};

// One line on a terminal, redrawn; nothing elsewhere.
void draw_progress(size_t done, size_t total) {
  constexpr int kWidth = 40;
  const int filled = total > 0 ? static_cast<int>(kWidth * done / total) : 0;
  std::fprintf(stderr, "\rloading [%.*s%*s] %3zu %%%s", filled, "########################################",
               kWidth - filled, "", total > 0 ? 100 * done / total : 0, done == total ? "\n" : "");
  std::fflush(stderr);
}

std::string served_name(const ServeConfig& config) {
  if (!config.model.served_name.empty()) return config.model.served_name;
  std::string path = config.model.path;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.find_last_of('/') + 1);
}

// Threads that do not end soon (one may be deep in somebody's text) must not hold the exit up.
void bound_exit(int code) {
  std::thread([code] {
    std::this_thread::sleep_for(kExitGrace);
    _exit(code);
  }).detach();
}

// Requests with tools are refused then.
void warn_of_hidden_tools(const ServeConfig& config, const OutputFormat& output, const TextModel& text) {
  if (output.tools == ToolFormat::kNone || !text.chat_template || text.chat_template->habits().tools) return;
  if (config.log_level < LogLevel::kWarning) return;
  std::fprintf(stderr, "tailrace: warning: requests with tools will be refused: the chat template does not show them "
                       "to the model, whatever parses its calls (--tool-call-parser)\n");
}

void print_start_up(const ServeConfig& config, const OutputFormat& output, const EngineHost& host) {
  if (config.log_level < LogLevel::kInfo) return;
  const std::string& reason = config.engine.device_reason;
  const bool fell_back = config.engine.device == DeviceChoice::kCpu && !reason.empty();
  std::printf("device           %s%s\n", host.device().description().c_str(),
              fell_back ? ("; no GPU: " + reason).c_str() : "");
  std::printf("model            %s\n", config.model.path.c_str());
  print_model_report(host.report());
  if (const std::string loaded = format_load(host.report().load); !loaded.empty()) {
    std::printf("loaded           %s\n", loaded.c_str());
  }
  std::printf("answers          %s\n", describe(output).c_str());
  const CostModel& cost = host.cost();
  std::printf("\nmeasured cost    step %.0f us + %.0f us per decode row + %.1f us per prefill token\n", cost.base_us,
              cost.decode_row_us, cost.extend_token_us);
  static const char* const kMixed[] = {"split", "fold", "off"};
  static const char* const kStaging[] = {"device", "packed", "pinned", "blocking"};
  std::printf("mixed steps      %s, overlap %s, staging %s\n\n", kMixed[static_cast<int>(config.engine.mixed)],
              config.engine.overlap ? "on" : "off", kStaging[static_cast<int>(config.engine.debug_staging)]);
}

}  // namespace

int run_serve(const ServeConfig& config) {
  StopSignal stop(!config.http.api_key_file.empty());
  RequestQueue queue(static_cast<size_t>(config.limits.max_queued_requests));
  EngineStatus status;
  StepLog steps(kLoggedSteps);
  HttpServer server(config, queue, status);
  server.set_page(page_files());
  const auto give_up = [&](const Status& reason) {
    stop.set_reload(nullptr);
    server.stop();  // what it has logged stands before the reason
    return bad_input(reason);
  };
  auto port = server.start();
  if (!port) return give_up(port.error());
  stop.set_reload([&server] { server.reload_keys(); });

  auto text = load_text(config);
  if (!text) return give_up(text.error());
  auto output = settle_output_format(config.model.tool_call_parser, config.model.reasoning_parser, **text);
  if (!output) return give_up(output.error());
  warn_of_hidden_tools(config, *output, **text);
  const bool terminal = isatty(STDERR_FILENO);
  EngineSetup setup = engine_setup(config, **text);
  setup.engine.log = &steps;
  auto host = EngineHost::create(setup, queue, status, terminal ? draw_progress : nullptr);
  if (!host) return give_up(host.error());
  print_start_up(config, *output, **host);

  const ModelReport& report = (*host)->report();
  ServedModel model;
  model.name = served_name(config);
  model.text = *text;
  model.output = *output;
  const TextModel& served = *model.text;
  auto grammars = Grammars::create(served.tokenizer, served.eos_ids, control_ids(*output, *served.tokenizer));
  if (grammars) model.grammars = std::move(*grammars);
  if (!grammars) model.no_grammars_reason = grammars.error().message();
  model.context_length = report.memory.context_length;
  model.vocab_size = static_cast<int32_t>(report.memory.step.vocab);
  model.max_running_requests = report.memory.step.max_rows;
  model.created_s = std::time(nullptr);
  server.set_info(server_info(config, setup, **host, model));
  (*host)->start();
  server.set_flush_cache([&engine = **host] { return engine.flush_cache(kFlushPatience); });
  server.set_step_log(&steps);
  server.set_model(std::move(model));
  const bool is_ipv6 = config.http.host.find(':') != std::string::npos;
  std::printf("ready            http://%s%s%s:%d (%sAPI at /v1, health at /health, metrics at /metrics)\n",
              is_ipv6 ? "[" : "", config.http.host.c_str(), is_ipv6 ? "]" : "", *port, page_files().empty() ? "" : "page at /, ");
  std::fflush(stdout);

  stop.set_loaded();
  const bool asked = stop.wait([&] { return status.state == EngineState::kDead; });
  const auto limit = std::chrono::milliseconds(static_cast<int64_t>(config.limits.shutdown_timeout_s * 1000));
  const bool drained = server.drain(asked ? limit : std::chrono::milliseconds(0));
  bound_exit(asked ? 0 : kExitEngineDied);
  stop.set_reload(nullptr);
  (*host)->stop(!drained);
  (*host)->join();
  server.stop();
  return asked ? 0 : kExitEngineDied;
}

}  // namespace tailrace
