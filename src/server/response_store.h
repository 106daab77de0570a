// ResponseStore: finished answers of /v1/responses, for later reading and for requests that go on from them. In memory
// only, bounded by count and bytes; the least recently used go first.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/json.h"

namespace tailrace {

struct StoredResponse {
  std::string id;
  std::shared_ptr<const void> owner;  // whose it is: the use of an API key; null without keys
  std::string response;               // as JSON
  // The conversation: arrays of items as JSON, input and output in turn. The last is this answer's output; those before
  // its input are shared with the answers that it goes on from, and outlive them.
  std::vector<std::shared_ptr<const std::string>> turns;
};

// Thread-safe.
class ResponseStore {
 public:
  // max_count 0: nothing is stored.
  ResponseStore(int64_t max_count, int64_t max_bytes) : max_count_(max_count), max_bytes_(max_bytes) {}

  bool enabled() const { return max_count_ > 0; }

  // Items on their way into the store: counted against the bytes as long as anybody holds them.
  std::shared_ptr<const std::string> make_turn(std::string items) const;

  // False: it alone takes more than the store may, and nothing changes.
  bool put(StoredResponse response);
  // Null where there is none of this id that `owner` put in.
  std::shared_ptr<const StoredResponse> find(const std::string& id, const std::shared_ptr<const void>& owner);
  bool erase(const std::string& id, const std::shared_ptr<const void>& owner);

  int64_t held_bytes() const { return held_->load(); }

 private:
  using Entries = std::list<std::shared_ptr<const StoredResponse>>;  // the latest used first

  Entries::iterator find_locked(const std::string& id, const std::shared_ptr<const void>& owner);
  void erase_locked(Entries::iterator entry);

  const int64_t max_count_, max_bytes_;
  const std::shared_ptr<std::atomic<int64_t>> held_ = std::make_shared<std::atomic<int64_t>>(0);
  std::mutex mutex_;
  Entries entries_;                                           // guarded by mutex_
  std::unordered_map<std::string, Entries::iterator> by_id_;  // guarded by mutex_
};

}  // namespace tailrace
