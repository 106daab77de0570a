#include "base/step_log.h"

#include <cstdio>
#include <utility>

namespace tailrace {
namespace {

constexpr char kLanes[] =
    "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
    "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"host\"}},\n"
    "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":2,\"args\":{\"name\":\"device\"}},\n"
    "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":1,\"args\":{\"name\":\"plan\"}},\n"
    "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":2,\"args\":{\"name\":\"launch\"}},\n"
    "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":3,\"args\":{\"name\":\"process\"}},\n"
    "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":2,\"tid\":1,\"args\":{\"name\":\"steps\"}},\n"
    "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":2,\"tid\":2,\"args\":{\"name\":\"idle\"}}";

const char* kind_name(const StepRecord& s) {
  if (s.num_decode_rows == s.num_rows) return "decode";
  return s.num_decode_rows > 0 ? "mixed" : "extend";
}

struct Lane {
  int process, lane;
};

class TraceWriter {
 public:
  explicit TraceWriter(int64_t zero_ns) : zero_ns_(zero_ns) {}

  void add(const StepRecord& s) {
    const std::string step = "\"step\":" + std::to_string(s.step);
    const char* cause = s.gap.ns > 0 ? idle_cause_name(s.gap.cause) : "none";
    char args[192];
    std::snprintf(args, sizeof args,
                  ",\"rows\":%d,\"decode_rows\":%d,\"tokens\":%d,\"slab\":%s,\"idle_before_us\":%.3f,"
                  "\"idle_cause\":\"%s\"",
                  s.num_rows, s.num_decode_rows, s.num_tokens, s.has_slab ? "true" : "false",
                  static_cast<double>(s.gap.ns) / 1e3, cause);
    event("plan", {1, 1}, s.plan_ns, s.launch_ns, step);
    event("launch", {1, 2}, s.launch_ns, s.launched_ns, step);
    event("process", {1, 3}, s.result_ns, s.processed_ns, step);
    if (s.gap.ns > 0) event(cause, {2, 2}, s.begun_ns - s.gap.ns, s.begun_ns, step);
    event(kind_name(s), {2, 1}, s.begun_ns, s.done_ns, step + args);
  }

  std::string finish() { return std::move(out_) + "\n]}\n"; }

 private:
  // One complete event ("X") of a lane.
  void event(const char* name, Lane lane, int64_t from, int64_t to, const std::string& args) {
    char text[192];
    std::snprintf(text, sizeof text,
                  ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{", name,
                  lane.process, lane.lane, static_cast<double>(from - zero_ns_) / 1e3,
                  static_cast<double>(std::max<int64_t>(to - from, 0)) / 1e3);
    out_.append(text).append(args).append("}}");
  }

  const int64_t zero_ns_;
  std::string out_ = kLanes;
};

}  // namespace

std::string trace_json(const std::vector<StepRecord>& steps) {
  TraceWriter writer(steps.empty() ? 0 : steps.front().plan_ns);
  for (const StepRecord& step : steps) writer.add(step);
  return writer.finish();
}

}  // namespace tailrace
