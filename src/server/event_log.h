// EventLog: the server's lines on stderr, as text or as JSON, in which nothing that a client sent can begin a new line; whoever
// writes one never waits for the reader.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "server/config.h"
#include "server/json.h"

namespace tailrace {

// One line. Text: `TIME level event name=value ...`, a value of anything but letters, digits and `._:/+-` as a JSON string;
// JSON: an object of time, level, event and the fields. Either is ASCII: the rest is escaped. Null fields are left out.
std::string format_event(LogFormat format, LogLevel level, std::string_view event, const Json& fields, int64_t unix_ms);

class EventLog {
 public:
  static constexpr size_t kMaxHeldBytes = size_t{1} << 20;  // of lines that the reader has not taken
  static constexpr std::chrono::milliseconds kClosePatience{500};

  EventLog(LogFormat format, LogLevel level, int fd = STDERR_FILENO);
  ~EventLog();  // close()
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Thread-safe; lines never mix. Queues the line for the thread that writes; what does not fit is dropped and counted, and
  // once the reader takes lines again one of them (`log_lines_dropped`) says how many there were.
  void write(LogLevel level, std::string_view event, const Json& fields = Json::object()) const;

  uint64_t num_dropped() const;

  // Returns when all is written, or after `patience`: a reader that is stuck holds nobody up. Later lines are dropped.
  // Idempotent; one thread at a time.
  void close(std::chrono::milliseconds patience = kClosePatience);

 private:
  struct Queue;

  const LogFormat format_;
  const LogLevel level_;
  const std::shared_ptr<Queue> queue_;  // outlives this where the thread is left behind in its write
  std::thread thread_;
};

}  // namespace tailrace
