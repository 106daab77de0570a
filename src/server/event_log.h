// EventLog: the server's lines on stderr, as text or as JSON, in which nothing that a client sent can begin a new line.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "server/config.h"
#include "server/json.h"

namespace tailrace {

// One line. Text: `TIME level event name=value ...`, a value of anything but letters, digits and `._:/+-` as a JSON string;
// JSON: an object of time, level, event and the fields. Either is ASCII: the rest is escaped. Null fields are left out.
std::string format_event(LogFormat format, LogLevel level, std::string_view event, const Json& fields, int64_t unix_ms);

class EventLog {
 public:
  EventLog(LogFormat format, LogLevel level, std::FILE* out = stderr) : format_(format), level_(level), out_(out) {}

  // Thread-safe; lines never mix.
  void write(LogLevel level, std::string_view event, const Json& fields = Json::object()) const;

 private:
  const LogFormat format_;
  const LogLevel level_;
  std::FILE* const out_;
};

}  // namespace tailrace
