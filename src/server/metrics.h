// What /metrics says: the engine's counters as they are, and histograms of what clients saw.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/engine_status.h"
#include "server/json.h"
#include "server/recent_times.h"

namespace tailrace {

// Names follow vLLM's and SGLang's dashboards with the prefix tailrace_; every series has a model_name label.
// Thread-safe.
class Metrics {
 public:
  Metrics(const EngineStatus& engine, const std::string& model_name);
  ~Metrics();

  // One request's end. reason: stop, length, abort or error. Times in seconds, negative when they did not happen.
  struct Finished {
    const char* reason = "stop";
    int64_t prompt_tokens = 0, generation_tokens = 0;
    double queue_s = -1, prefill_s = -1, decode_s = -1, e2e_s = -1;
  };
  void finished(const Finished& request);
  void time_to_first_token(double seconds);
  // `count` tokens arrived together, `seconds` after the token before them.
  void inter_token(double seconds, int count);
  void http_answer(int status);

  // Of the last minute, as clients saw them; lives as long as this.
  const RecentTimes& recent_times() const;

  // What the server itself has open, as the caller knows it.
  struct Open {
    int64_t connections = 0, body_bytes = 0;
    int64_t stored_responses = 0, stored_response_bytes = 0;
    uint64_t dropped_log_lines = 0;
    std::vector<std::pair<std::string, int64_t>> key_sequences;  // choices that are not answered yet, by the key's name
  };
  // Prometheus text format 0.0.4.
  std::string serialize(const Open& open) const;
  // The engine's gauges and counters by name: a number, or an object of numbers where a label tells them apart.
  Json engine_json() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace
