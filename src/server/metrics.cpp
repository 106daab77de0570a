#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "server/process_metrics.h"

namespace tailrace {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const prometheus::Histogram::BucketBoundaries kTtft = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25, 0.5, 0.75,
                                                       1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0};
const prometheus::Histogram::BucketBoundaries kInterToken = {0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025,
                                                             0.03,  0.04,  0.05,  0.075, 0.1,    0.15, 0.2,   0.3,  0.5,
                                                             0.75,  1.0,   2.5,   5.0,   10.0};
const prometheus::Histogram::BucketBoundaries kRequestTime = {0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5,  2.0,  2.5,   5.0,  10.0,
                                                              15.0, 20., 30., 40., 50., 60., 120., 240., 480., 960., 1920.};
const prometheus::Histogram::BucketBoundaries kTokens = {1,   2,    5,    10,   20,    50,    100,   200,   500,
                                                         1e3, 2e3,  5e3,  1e4,  2e4,   5e4,   1e5,   2e5};

// The engine's atomics as families, read when a scrape asks.
class EngineFamilies {
 public:
  EngineFamilies(const EngineStatus& engine, std::string model_name) : engine_(engine), model_(std::move(model_name)) {}

  std::vector<MetricFamily> collect() {
    out_.clear();
    gauge("num_requests_running", "Requests in the running batch.", engine_.running.load());
    gauge("num_requests_waiting", "Accepted requests that do not run yet.", engine_.waiting.load());
    gauge("inflight_steps", "Steps launched whose result is not processed yet.", engine_.inflight_steps.load());
    gauge("engine_ready", "1 when requests are admitted.", engine_.state.load() == EngineState::kReady);
    gauge("device_memory_bytes", "Device memory claimed.", static_cast<double>(engine_.device_bytes.load()));
    gauge("pinned_memory_bytes", "Pinned host memory claimed.", static_cast<double>(engine_.pinned_bytes.load()));
    collect_kv();
    family("state_checkpoints", "Checkpoints of recurrent states by state; all 0 where a model has none.",
           MetricType::Gauge);
    by_state({}, engine_.checkpoints);
    counter("prompt_tokens", "Prompt tokens of admitted requests.", engine_.prompt_tokens);
    counter("cached_prompt_tokens", "Prompt tokens served from the prefix cache.", engine_.cached_tokens);
    counter("generation_tokens", "Generated tokens.", engine_.generated_tokens);
    counter("computed_tokens", "Tokens that went through the model.", engine_.computed_tokens);
    counter("num_preemptions", "Requests preempted, to be recomputed.", engine_.preemptions);
    family("steps_total", "Steps by kind.", MetricType::Counter);
    labelled("kind", "decode", engine_.decode_steps.load());
    labelled("kind", "extend", engine_.extend_steps.load());
    labelled("kind", "mixed", engine_.mixed_steps.load());
    family("host_block_total", "Contract 1: waits of the engine thread for the device, other than for the sampled ids.",
           MetricType::Counter);
    labelled_all("site", engine_.host_block);
    counter("device_alloc_after_ready", "Contract 2: device or pinned allocations after ready.",
            engine_.device_alloc_after_ready);
    family("mixed_fallback_total", "Contract 3: mixed steps served by another path, by reason.", MetricType::Counter);
    labelled_all("reason", engine_.mixed_fallback);
    counter("mixed_over_budget", "Contract 3: mixed steps longer than the bound.", engine_.mixed_over_budget);
    counter("slab_copies", "Steps whose rows or tables had to be sent to the device.", engine_.slab_copies);
    counter("spared_rows", "Decode rows that a stop token ended while their next step was queued: the device left them out.",
            engine_.spared_rows);
    counter("grammar_masks", "Masks computed for answers under a grammar.", engine_.masks);
    family("grammar_mask_seconds_total", "Time of the threads that compute them.", MetricType::Counter);
    sample(static_cast<double>(engine_.mask_us.load()) * 1e-6);
    counter("grammar_late_masks", "Rows left out of the step that they were in, since their mask came after it.",
            engine_.late_masks);
    counter("mixed_floor_steps", "Mixed steps whose smallest chunk alone exceeds the bound.", engine_.mixed_floor_steps);
    family("device_idle_seconds_total", "Contract 6: device idle between steps, by cause.", MetricType::Counter);
    labelled("cause", "host_late", engine_.idle_host_late_us.load() * 1e-6);
    labelled("cause", "launch", engine_.idle_launch_us.load() * 1e-6);
    labelled("cause", "metadata", engine_.idle_metadata_us.load() * 1e-6);
    labelled("cause", "no_work", engine_.idle_no_work_us.load() * 1e-6);
    labelled("cause", "result_wait", engine_.idle_result_wait_us.load() * 1e-6);
    return std::move(out_);
  }

 private:
  void collect_kv() {
    const int groups = engine_.num_kv_groups.load(std::memory_order_acquire);
    family("kv_cache_usage_perc", "Share of a layer group's KV blocks owned by requests, 0 to 1.", MetricType::Gauge);
    for (int i = 0; i < groups; ++i) {
      const auto& group = engine_.kv[i];
      const double total = static_cast<double>(group.total.load());
      labelled("group", group_name(i), total > 0 ? static_cast<double>(group.owned.load()) / total : 0.0);
    }
    family("kv_cache_blocks", "KV blocks of a layer group by state.", MetricType::Gauge);
    for (int i = 0; i < groups; ++i) {
      by_state({{"group", group_name(i)}}, engine_.kv[i]);
    }
  }

  void by_state(const std::vector<ClientMetric::Label>& labels, const KvGroupStatus& pool) {
    const std::pair<const char*, int64_t> states[] = {
        {"free", pool.free.load()}, {"cached", pool.cached.load()}, {"owned", pool.owned.load()}};
    for (const auto& [state, count] : states) {
      auto& label = sample(static_cast<double>(count)).label;
      label.insert(label.end(), labels.begin(), labels.end());
      label.push_back({"state", state});
    }
  }

  std::string group_name(int i) const {
    const int window = engine_.kv[i].window.load();
    return window == 0 ? "full" : "window_" + std::to_string(window);
  }

  void family(const char* name, const char* help, MetricType type) {
    out_.push_back({std::string("tailrace_") + name, help, type, {}});
  }
  ClientMetric& sample(double value) {
    auto& family = out_.back();
    ClientMetric metric;
    metric.label.push_back({"model_name", model_});
    (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family.metric.push_back(std::move(metric));
    return family.metric.back();
  }
  void labelled(const char* label, const std::string& value, double number) {
    sample(number).label.push_back({label, value});
  }
  void labelled_all(const char* label, const LabelledCounters& counters) {
    bool any = false;
    counters.for_each([&](const char* name, uint64_t count) {
      labelled(label, name, static_cast<double>(count));
      any = true;
    });
    if (!any) labelled(label, "any", 0);  // the series exists from the start, so that an alert can be written on it
  }
  void gauge(const char* name, const char* help, double value) {
    family(name, help, MetricType::Gauge);
    sample(value);
  }
  void counter(const std::string& name, const char* help, const std::atomic<uint64_t>& value) {
    family((name + "_total").c_str(), help, MetricType::Counter);
    sample(static_cast<double>(value.load()));
  }

  const EngineStatus& engine_;
  const std::string model_;
  std::vector<MetricFamily> out_;
};

}  // namespace

struct Metrics::Impl {
  Impl(const EngineStatus& status, const std::string& name) : engine(status), model_name(name) {}

  prometheus::Histogram& histogram(const char* name, const char* help,
                                   const prometheus::Histogram::BucketBoundaries& bounds) {
    return prometheus::BuildHistogram()
        .Name(std::string("tailrace_") + name)
        .Help(help)
        .Labels({{"model_name", model_name}})
        .Register(registry)
        .Add({}, bounds);
  }
  prometheus::Family<prometheus::Counter>& counters(const char* name, const char* help) {
    return prometheus::BuildCounter()
        .Name(std::string("tailrace_") + name)
        .Help(help)
        .Labels({{"model_name", model_name}})
        .Register(registry);
  }

  const EngineStatus& engine;
  const std::string model_name;
  prometheus::Registry registry;
  RecentTimes recent;
  prometheus::Histogram& ttft = histogram("time_to_first_token_seconds", "From the request's arrival.", kTtft);
  prometheus::Histogram& itl = histogram("inter_token_latency_seconds", "Between tokens of one choice.", kInterToken);
  prometheus::Histogram& e2e = histogram("e2e_request_latency_seconds", "From arrival to the end.", kRequestTime);
  prometheus::Histogram& queue = histogram("request_queue_time_seconds", "Waiting to be admitted.", kRequestTime);
  prometheus::Histogram& prefill = histogram("request_prefill_time_seconds", "Admission to first token.", kRequestTime);
  prometheus::Histogram& decode = histogram("request_decode_time_seconds", "First token to the end.", kRequestTime);
  prometheus::Histogram& prompt = histogram("request_prompt_tokens", "Prompt tokens of a request.", kTokens);
  prometheus::Histogram& generation = histogram("request_generation_tokens", "Tokens generated for a choice.", kTokens);
  prometheus::Family<prometheus::Counter>& success =
      counters("request_success_total", "Ended sequences by reason: stop, length, abort, error.");
  prometheus::Family<prometheus::Counter>& answers = counters("http_answers_total", "HTTP answers by status.");
};

Metrics::Metrics(const EngineStatus& engine, const std::string& model_name)
    : impl_(std::make_unique<Impl>(engine, model_name)) {
  for (const char* reason : {"stop", "length", "abort", "error"}) impl_->success.Add({{"finished_reason", reason}});
}

Metrics::~Metrics() = default;

void Metrics::finished(const Finished& request) {
  impl_->success.Add({{"finished_reason", request.reason}}).Increment();
  if (request.reason == std::string("error")) return;  // refused, most of them: no latency of an answer
  impl_->prompt.Observe(static_cast<double>(request.prompt_tokens));
  impl_->generation.Observe(static_cast<double>(request.generation_tokens));
  if (request.queue_s >= 0) impl_->queue.Observe(request.queue_s);
  if (request.prefill_s >= 0) impl_->prefill.Observe(request.prefill_s);
  if (request.decode_s >= 0) impl_->decode.Observe(request.decode_s);
  if (request.e2e_s >= 0) impl_->e2e.Observe(request.e2e_s);
}

void Metrics::time_to_first_token(double seconds) {
  impl_->ttft.Observe(seconds);
  impl_->recent.ttft.add(seconds);
}

void Metrics::inter_token(double seconds, int count) {
  for (int i = 0; i < count; ++i) impl_->itl.Observe(seconds / count);
  impl_->recent.inter_token.add(seconds / count, count);
}

void Metrics::http_answer(int status) { impl_->answers.Add({{"status", std::to_string(status)}}).Increment(); }

const RecentTimes& Metrics::recent_times() const { return impl_->recent; }

namespace {

MetricFamily single(const std::string& name, const char* help, MetricType type, double value,
                    std::vector<ClientMetric::Label> labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return {name, help, type, {std::move(metric)}};
}

// Of the server and its process. Without keys there is one series whose key is "".
std::vector<MetricFamily> server_families(const Metrics::Open& open, const std::string& model) {
  const std::vector<ClientMetric::Label> labels = {{"model_name", model}};
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  std::vector<MetricFamily> out = {
      single("tailrace_http_connections", "Open connections.", MetricType::Gauge, count(open.connections), labels),
      single("tailrace_http_body_bytes", "Bytes of request bodies, and what is parsed from them, that are held.",
             MetricType::Gauge, count(open.body_bytes), labels),
      single("tailrace_stored_responses", "Answers of /v1/responses that are stored.", MetricType::Gauge,
             count(open.stored_responses), labels),
      single("tailrace_stored_response_bytes", "Their bytes, and those of what is on its way there.", MetricType::Gauge,
             count(open.stored_response_bytes), labels),
      single("tailrace_log_lines_dropped_total", "Lines of the log that its reader was too slow for.", MetricType::Counter,
             static_cast<double>(open.dropped_log_lines), labels)};
  MetricFamily keys{"tailrace_key_sequences_running", "Choices that are not answered yet, by the name of the key.",
                    MetricType::Gauge, {}};
  for (const auto& [name, running] : open.key_sequences) {
    ClientMetric metric;
    metric.label = {{"model_name", model}, {"key", name}};
    metric.gauge.value = count(running);
    keys.metric.push_back(std::move(metric));
  }
  out.push_back(std::move(keys));
  const ProcessMetrics process = read_process_metrics();
  const auto of_process = [&out](const char* name, const char* help, double value) {
    const bool counted = std::string_view(name).ends_with("_total");
    out.push_back(single(std::string("process_") + name, help, counted ? MetricType::Counter : MetricType::Gauge, value, {}));
  };
  of_process("resident_memory_bytes", "Resident memory.", count(process.resident_bytes));
  of_process("virtual_memory_bytes", "Address space.", count(process.virtual_bytes));
  of_process("open_fds", "Open file descriptors.", count(process.open_fds));
  of_process("cpu_seconds_total", "CPU time of user and system.", process.cpu_seconds);
  of_process("start_time_seconds", "Unix time of the start.", process.start_time_s);
  return out;
}

}  // namespace

Json Metrics::engine_json() const {
  Json out = Json::object();
  for (const MetricFamily& family : EngineFamilies(impl_->engine, impl_->model_name).collect()) {
    Json& entry = out[family.name];
    for (const ClientMetric& metric : family.metric) {
      const double value = family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value;
      std::string labels;
      for (size_t i = 1; i < metric.label.size(); ++i) {  // 0: the model
        labels += (i > 1 ? "," : "") + metric.label[i].value;
      }
      (labels.empty() ? entry : entry[labels]) = value;
    }
    if (entry.is_null()) entry = Json::object();
  }
  return out;
}

std::string Metrics::serialize(const Open& open) const {
  auto families = impl_->registry.Collect();
  const auto server = server_families(open, impl_->model_name);
  families.insert(families.end(), server.begin(), server.end());
  auto engine = EngineFamilies(impl_->engine, impl_->model_name).collect();
  families.insert(families.end(), std::make_move_iterator(engine.begin()), std::make_move_iterator(engine.end()));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace tailrace
