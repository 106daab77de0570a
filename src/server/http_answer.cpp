#include "server/http_answer.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "server/body_budget.h"

namespace tailrace {
namespace {

const char* reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Payload Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Status";
  }
}

constexpr size_t kSmallRun = size_t{64} << 10;  // what is queued behind less than this is counted with it
constexpr int kNoContent = 204;  // neither type nor length (RFC 9110, 8.6)

std::string format_head(const HttpResponse& response, const HttpHeaders& more, bool close) {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " + reason_phrase(response.status) + "\r\n" +
                     "Server: tailrace\r\n";
  if (response.status != kNoContent) head += "Content-Type: " + response.content_type + "\r\n";
  for (const auto& [name, value] : response.headers) head += name + ": " + value + "\r\n";
  for (const auto& [name, value] : more) head += name + ": " + value + "\r\n";
  if (close) head += "Connection: close\r\n";
  return head;
}

}  // namespace

std::string format_response(const HttpResponse& response, const WireForm& form) {
  std::string text = format_head(response, form.headers, response.close || !form.keep_alive);
  if (response.status != kNoContent) text += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
  text += "\r\n";
  return form.head_only ? text : text + response.body;
}

HttpResponse to_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.http_status;
  response.body = dump_json(to_json(error));
  response.error = error;
  if (error.http_status == 503 || error.http_status == 429) response.headers.emplace_back("Retry-After", "1");
  return response;
}

void HttpAnswer::respond(HttpResponse response) {
  std::lock_guard lock(mutex_);
  if (left_) return;
  CHECK(!begun_);
  begun_ = ended_ = true;
  if (wiring_.reword) wiring_.reword(response);
  const bool keep = wiring_.keep_alive();
  close_ = response.close || !keep;
  body_share_ = std::move(response.body_share);
  add_locked(format_response(response, {keep, wiring_.head_only, wiring_.headers}));
  on_disconnect_ = nullptr;
  signal_locked();
}

void HttpAnswer::begin_stream(HttpResponse head) {
  std::lock_guard lock(mutex_);
  if (left_) return;
  CHECK(!begun_ && head.body.empty());
  begun_ = streaming_ = true;
  close_ = head.close || wiring_.http_1_0 || !wiring_.keep_alive();
  std::string text = format_head(head, wiring_.headers, close_);
  if (!wiring_.http_1_0) text += "Transfer-Encoding: chunked\r\n";
  add_locked(text + "\r\n");
  signal_locked();
}

void HttpAnswer::add_locked(std::string_view bytes) {
  unsent_.append(bytes);
  if (runs_.empty() || runs_.back() >= kSmallRun) runs_.push_back(0);
  runs_.back() += bytes.size();
  if (runs_.size() > 1) behind_ += bytes.size();
}

void HttpAnswer::queue_locked(std::string_view bytes) {
  if (wiring_.http_1_0) return add_locked(bytes);
  char size[20];
  const int length = std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  add_locked({size, static_cast<size_t>(length)});
  add_locked(bytes);
  add_locked("\r\n");
}

void HttpAnswer::write(std::string_view bytes) {
  std::lock_guard lock(mutex_);
  if (left_ || cut_off_ || bytes.empty() || wiring_.head_only) return;
  CHECK(streaming_ && !ended_);
  const bool slow = behind_ > wiring_.max_unsent_bytes;
  queue_locked(bytes);
  if (slow) {
    cut_off_ = true;
    signalled_ = false;  // the connection sits in a write that makes no progress: tell it again
  }
  signal_locked();
}

void HttpAnswer::end_stream() {
  std::lock_guard lock(mutex_);
  if (left_ || ended_) return;
  CHECK(streaming_);
  ended_ = true;
  if (!wiring_.http_1_0 && !wiring_.head_only) add_locked("0\r\n\r\n");
  on_disconnect_ = nullptr;
  signal_locked();
}

void HttpAnswer::signal_locked() {
  if (signalled_) return;
  signalled_ = true;
  wiring_.post(wiring_.wake);
}

void HttpAnswer::on_disconnect(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (!left_) {
      on_disconnect_ = std::move(callback);
      return;
    }
  }
  wiring_.post(std::move(callback));
}

bool HttpAnswer::disconnected() const {
  std::lock_guard lock(mutex_);
  return left_ || cut_off_;
}

std::string HttpAnswer::take_unsent() {
  std::lock_guard lock(mutex_);
  signalled_ = false;
  return std::exchange(unsent_, std::string());
}

void HttpAnswer::sent(size_t bytes) {
  std::lock_guard lock(mutex_);
  while (bytes > 0) {
    const size_t part = std::min(bytes, runs_.front());
    bytes -= part;
    runs_.front() -= part;
    if (runs_.front() > 0) continue;
    runs_.pop_front();
    if (!runs_.empty()) behind_ -= runs_.front();
  }
}

bool HttpAnswer::ended() const {
  std::lock_guard lock(mutex_);
  return ended_ && unsent_.empty();
}

bool HttpAnswer::cut_off() const {
  std::lock_guard lock(mutex_);
  return cut_off_;
}

bool HttpAnswer::close_after() const {
  std::lock_guard lock(mutex_);
  return close_;
}

bool HttpAnswer::probe() {
  std::lock_guard lock(mutex_);
  if (ended_) return true;
  if (wiring_.http_1_0) return false;
  if (streaming_) {
    queue_locked(": probe\n\n");
  } else {
    add_locked("HTTP/1.1 100 Continue\r\n\r\n");
  }
  signal_locked();
  return true;
}

void HttpAnswer::client_left() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    if (left_) return;
    left_ = true;
    callback = std::exchange(on_disconnect_, nullptr);
  }
  if (callback) callback();
}

}  // namespace tailrace
