#include "server/event_log.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/unix_time.h"

namespace tailrace {
namespace {

constexpr const char* kLevels[] = {"error", "warning", "info", "debug"};

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

struct EventLog::Queue {
  explicit Queue(int descriptor) : fd(descriptor) {}

  void push(const std::string& line);
  void run(LogFormat format);
  std::string_view write_all(std::string_view text) const;  // what could not be written

  const int fd;
  std::mutex mutex;
  std::condition_variable changed, ended_changed;
  std::string lines;               // not yet taken by the thread; guarded by mutex, as all below
  size_t writing = 0;              // bytes that the thread has taken and not yet written
  uint64_t dropped = 0, told = 0;  // lines; of them those that a line has told of
  bool closing = false, ended = false;
};

void EventLog::Queue::push(const std::string& line) {
  std::lock_guard lock(mutex);
  if (closing || lines.size() + writing + line.size() > kMaxHeldBytes) {
    ++dropped;
    return;
  }
  lines += line;
  changed.notify_one();
}

std::string_view EventLog::Queue::write_all(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EAGAIN) {  // somebody has made it non-blocking
      pollfd poller{fd, POLLOUT, 0};
      ::poll(&poller, 1, -1);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return text;
}

void EventLog::Queue::run(LogFormat format) {
  sigset_t all;  // a reader that has gone is an error of the write, not the process's end
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex);
  for (bool broken = false;;) {
    changed.wait(lock, [&] { return closing || !lines.empty() || (dropped > told && !broken); });
    if (lines.empty() && (broken || dropped == told)) break;
    const uint64_t telling = dropped;
    std::string batch = std::exchange(lines, {});
    if (telling > told) {
      batch += format_event(format, LogLevel::kWarning, "log_lines_dropped", {{"count", telling - told}}, unix_ms()) + "\n";
    }
    writing = batch.size();
    lock.unlock();
    const std::string_view lost = write_all(batch);
    lock.lock();
    writing = 0;
    broken = !lost.empty();
    if (broken) dropped += static_cast<uint64_t>(std::count(lost.begin(), lost.end(), '\n')) - (telling > told ? 1 : 0);
    if (!broken) told = telling;
  }
  ended = true;
  ended_changed.notify_all();
}

EventLog::EventLog(LogFormat format, LogLevel level, int fd)
    : format_(format), level_(level), queue_(std::make_shared<Queue>(fd)) {
  thread_ = std::thread([queue = queue_, format] { queue->run(format); });
}

EventLog::~EventLog() { close(); }

void EventLog::write(LogLevel level, std::string_view event, const Json& fields) const {
  if (level > level_) return;
  queue_->push(format_event(format_, level, event, fields, unix_ms()) + "\n");
}

uint64_t EventLog::num_dropped() const {
  std::lock_guard lock(queue_->mutex);
  return queue_->dropped;
}

void EventLog::close(std::chrono::milliseconds patience) {
  if (!thread_.joinable()) return;
  bool ended = false;
  {
    std::unique_lock lock(queue_->mutex);
    queue_->closing = true;
    queue_->changed.notify_one();
    ended = queue_->ended_changed.wait_for(lock, patience, [this] { return queue_->ended; });
  }
  ended ? thread_.join() : thread_.detach();
}

}  // namespace tailrace
