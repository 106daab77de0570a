// RequestLog: what is known of requests that run and of the last ones that ended; never what they say.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/request.h"
#include "server/api_keys.h"
#include "server/http_exchange.h"
#include "server/json.h"

namespace tailrace {

// A well-formed id of a client is kept: 1 to 128 letters, digits, `.`, `_`, `:` and `-`.
bool is_request_id(std::string_view text);

// One HTTP request. Thread-safe.
class RequestEntry {
 public:
  explicit RequestEntry(const HttpRequest& request);

  const std::string& id() const { return id_; }
  const std::string& path() const { return path_; }
  const std::shared_ptr<const ApiKey>& key() const { return key_; }
  // Whether `text` is the request's id or its answer's.
  bool is_called(const std::string& text) const;

  // What is to be generated, before it is queued.
  void set_plan(std::string answer_id, bool stream, std::vector<std::shared_ptr<const Request>> sequences,
                std::function<void()> cancel);
  void add_tokens(int64_t count);                          // that were generated; the first call is the first token's time
  void choice_ended(size_t choice, const char* reason);
  void set_status(int http_status, std::string error_code);
  void end();                                              // once; later calls do nothing

  // Ends what is generated early, now or once there is a plan; false when the request has ended or was aborted before.
  bool abort();

  // id, answer_id, key, method, path, state (preparing, waiting, running, ended), created, status, error, stream, choices,
  // the counts of tokens, finish_reasons, queue_ms, ttft_ms, duration_ms. What is not known is null.
  Json to_json();

 private:
  void settle_locked();  // copies what the sequences know

  const std::string id_, method_, path_;
  const std::shared_ptr<const ApiKey> key_;
  const int64_t received_ns_;
  const double created_s_;  // Unix time

  mutable std::mutex mutex_;
  std::string answer_id_, error_code_;
  bool planned_ = false, stream_ = false, aborted_ = false, ended_ = false;
  std::vector<std::shared_ptr<const Request>> sequences_;  // until the end
  std::function<void()> cancel_;
  std::vector<std::string> reasons_;
  int http_status_ = 0;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0, choices_ = 0;
  int64_t queued_ns_ = 0, admitted_ns_ = 0, first_token_ns_ = 0, ended_ns_ = 0;
};

class RequestLog {
 public:
  static constexpr size_t kRecent = 256;  // requests that ended and are still listed

  void begin(const std::shared_ptr<RequestEntry>& entry);
  void end(const std::shared_ptr<RequestEntry>& entry);

  // {"running": [oldest first], "recent": [latest first]}: those of `owner`, or all when it is null.
  Json to_json(const ApiKey* owner) const;
  // Aborts the running requests of `owner` (null: anybody's) that are called `id` (empty: all of them); their ids.
  std::vector<std::string> abort(const std::string& id, const ApiKey* owner);

 private:
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<RequestEntry>> running_, recent_;  // at most one a connection; at most kRecent
};

}  // namespace tailrace
