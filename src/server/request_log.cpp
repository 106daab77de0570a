#include "server/request_log.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/unix_time.h"

namespace tailrace {
namespace {

double unix_now() { return static_cast<double>(unix_ms()) / 1e3; }

Json ms_between(int64_t from_ns, int64_t to_ns) {
  if (from_ns <= 0 || to_ns < from_ns) return nullptr;
  return static_cast<double>((to_ns - from_ns) / 1000) / 1e3;
}

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

bool owned_by(const RequestEntry& entry, const ApiKey* owner) {
  return owner == nullptr || (entry.key() && entry.key()->use == owner->use);
}

}  // namespace

bool is_request_id(std::string_view text) {
  return !text.empty() && text.size() <= 128 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return c < 0x80 && (std::isalnum(c) || c == '.' || c == '_' || c == ':' || c == '-');
         });
}

RequestEntry::RequestEntry(const HttpRequest& request)
    : id_(request.request_id),
      method_(request.method),
      path_(request.path.substr(0, 200)),
      key_(request.key),
      received_ns_(request.received_ns > 0 ? request.received_ns : now_ns()),
      created_s_(unix_now()) {}

bool RequestEntry::is_called(const std::string& text) const {
  std::lock_guard lock(mutex_);
  return id_ == text || (!answer_id_.empty() && answer_id_ == text);
}

void RequestEntry::set_plan(std::string answer_id, bool stream,
                            std::vector<std::shared_ptr<const Request>> sequences,
                            std::function<void()> cancel) {
  bool aborted = false;
  {
    std::lock_guard lock(mutex_);
    planned_ = true;
    answer_id_ = std::move(answer_id);
    stream_ = stream;
    for (const auto& sequence : sequences)
      prompt_tokens_ += static_cast<int64_t>(sequence->prompt_ids.size());
    choices_ = static_cast<int64_t>(sequences.size());
    reasons_.resize(sequences.size());
    sequences_ = std::move(sequences);
    cancel_ = cancel;
    aborted = aborted_;
  }
  if (aborted) cancel();
}

void RequestEntry::add_tokens(int64_t count) {
  std::lock_guard lock(mutex_);
  if (first_token_ns_ == 0) first_token_ns_ = now_ns();
  completion_tokens_ += count;
}

void RequestEntry::choice_ended(size_t choice, const char* reason) {
  std::lock_guard lock(mutex_);
  if (choice < reasons_.size()) reasons_[choice] = reason;
}

void RequestEntry::set_status(int http_status, std::string error_code) {
  std::lock_guard lock(mutex_);
  http_status_ = http_status;
  error_code_ = std::move(error_code);
}

void RequestEntry::settle_locked() {
  cached_tokens_ = 0;
  for (const auto& sequence : sequences_) {
    const auto& stream = *sequence->stream;
    cached_tokens_ += stream.cached_len.load();
    const auto earliest = [](int64_t& slot, int64_t value) {
      if (value > 0 && (slot == 0 || value < slot)) slot = value;
    };
    earliest(queued_ns_, stream.times.queued_ns.load());
    earliest(admitted_ns_, stream.times.admitted_ns.load());
  }
}

void RequestEntry::end() {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  settle_locked();
  ended_ = true;
  ended_ns_ = now_ns();
  sequences_.clear();  // prompts are not kept
  cancel_ = nullptr;
}

bool RequestEntry::abort() {
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    if (ended_ || aborted_) return false;
    aborted_ = true;
    cancel = cancel_;
  }
  if (cancel) cancel();
  return true;
}

Json RequestEntry::to_json() {
  std::lock_guard lock(mutex_);
  if (!ended_) settle_locked();
  const char* state = ended_             ? "ended"
                      : admitted_ns_ > 0 ? "running"
                      : planned_         ? "waiting"
                                         : "preparing";
  Json out = {{"id", id_},
              {"answer_id", or_null(answer_id_)},
              {"key", key_ ? Json(key_->name) : Json(nullptr)},
              {"method", method_},
              {"path", path_},
              {"state", state},
              {"created", created_s_},
              {"status", http_status_ > 0 ? Json(http_status_) : Json(nullptr)},
              {"error", or_null(error_code_)}};
  Json reasons = Json::array();
  for (const std::string& reason : reasons_) reasons.push_back(or_null(reason));
  const auto counted = [this](Json value) { return planned_ ? std::move(value) : Json(nullptr); };
  out["stream"] = counted(stream_);
  out["choices"] = counted(choices_);
  out["prompt_tokens"] = counted(prompt_tokens_);
  out["cached_tokens"] = counted(cached_tokens_);
  out["completion_tokens"] = counted(completion_tokens_);
  out["finish_reasons"] = counted(std::move(reasons));
  out["queue_ms"] = ms_between(queued_ns_, admitted_ns_);
  out["ttft_ms"] = ms_between(received_ns_, first_token_ns_);
  out["duration_ms"] = ms_between(received_ns_, ended_ ? ended_ns_ : now_ns());
  return out;
}

void RequestLog::begin(const std::shared_ptr<RequestEntry>& entry) {
  std::lock_guard lock(mutex_);
  running_.push_back(entry);
}

void RequestLog::end(const std::shared_ptr<RequestEntry>& entry) {
  std::shared_ptr<RequestEntry> oldest;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  if (std::erase(running_, entry) == 0) return;
  recent_.push_front(entry);
  if (recent_.size() <= kRecent) return;
  oldest = std::move(recent_.back());
  recent_.pop_back();
}

Json RequestLog::to_json(const ApiKey* owner) const {
  std::deque<std::shared_ptr<RequestEntry>> running, recent;
  {
    std::lock_guard lock(mutex_);
    running = running_;
    recent = recent_;
  }
  const auto list = [owner](const auto& entries) {
    Json out = Json::array();
    for (const auto& entry : entries) {
      if (owned_by(*entry, owner)) out.push_back(entry->to_json());
    }
    return out;
  };
  return {{"running", list(running)}, {"recent", list(recent)}};
}

std::vector<std::string> RequestLog::abort(const std::string& id, const ApiKey* owner) {
  std::deque<std::shared_ptr<RequestEntry>> running;
  {
    std::lock_guard lock(mutex_);
    running = running_;
  }
  std::vector<std::string> aborted;
  for (const auto& entry : running) {
    if (!owned_by(*entry, owner) || (!id.empty() && !entry->is_called(id))) continue;
    if (entry->abort()) aborted.push_back(entry->id());
  }
  return aborted;
}

}  // namespace tailrace
