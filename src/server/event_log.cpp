#include "server/event_log.h"

#include <algorithm>
#include <chrono>
#include <ctime>

namespace tailrace {
namespace {

constexpr const char* kLevels[] = {"error", "warning", "info", "debug"};

std::string utc_time(int64_t unix_ms) {
  const auto seconds = static_cast<std::time_t>(unix_ms / 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof text - length, ".%03dZ", static_cast<int>(unix_ms % 1000));
  return text;
}

std::string ascii_json(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

std::string text_value(const Json& value) {
  if (!value.is_string()) return ascii_json(value);
  const auto& text = value.get_ref<const std::string&>();
  const bool bare = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) || std::string_view("._:/+-").find(static_cast<char>(c)) !=
                                               std::string_view::npos);
  });
  return bare ? text : ascii_json(value);
}

}  // namespace

std::string format_event(LogFormat format, LogLevel level, std::string_view event,
                         const Json& fields, int64_t unix_ms) {
  const char* name = kLevels[static_cast<int>(level)];
  if (format == LogFormat::kJson) {
    Json line = {{"time", utc_time(unix_ms)}, {"level", name}, {"event", event}};
    for (const auto& [key, value] : fields.items()) {
      if (!value.is_null()) line[key] = value;
    }
    return ascii_json(line);
  }
  std::string line = utc_time(unix_ms) + " " + name + " " + std::string(event);
  for (const auto& [key, value] : fields.items()) {
    if (!value.is_null()) line += " " + key + "=" + text_value(value);
  }
  return line;
}

void EventLog::write(LogLevel level, std::string_view event, const Json& fields) const {
  if (level > level_) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::string line = format_event(format_, level, event, fields, unix_ms) + "\n";
  std::fwrite(line.data(), 1, line.size(), out_);
  std::fflush(out_);
}

}  // namespace tailrace
