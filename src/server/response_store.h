// ResponseStore: finished answers of /v1/responses, for later reading and for requests that go on from them. In memory
// only, bounded by count and bytes, of which each key has its share.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/json.h"

namespace tailrace {

struct StoredResponse {
  using Owner = std::shared_ptr<const void>;
  using Turns = std::vector<std::shared_ptr<const std::string>>;

  std::string id;
  Owner owner;           // whose it is: the use of an API key; null without keys
  std::string response;  // as JSON
  // The conversation: arrays of items as JSON, input and output in turn. The last is this answer's output; those before
  // its input are shared with the answers that it goes on from, and outlive them.
  Turns turns;
};

// Thread-safe. What is stored and what is on its way takes max_bytes at most. Where there is no room a key that holds more than
// its share, the bound divided by the keys that hold anything, gives up what it has used the longest ago: the one that stores,
// and else the one that holds most. So nobody loses what is within their share to others.
class ResponseStore {
 public:
  using Owner = StoredResponse::Owner;
  using Turns = StoredResponse::Turns;

  // max_count 0: nothing is stored.
  ResponseStore(int64_t max_count, int64_t max_bytes) : max_count_(max_count), max_bytes_(max_bytes) {}

  bool enabled() const { return max_count_ > 0; }

  // `before` (of the answer that `owner` goes on from) and `items` behind it: what a request says whose answer is to be stored.
  // Counted as long as anybody holds them. None where there is no room.
  std::optional<Turns> begin(Turns before, std::string items, const Owner& owner);

  // The answer to what `response.turns` says; `output`: its items. False where there is no room.
  bool put(StoredResponse response, std::string output);

  // Null where there is none of this id that `owner` put in.
  std::shared_ptr<const StoredResponse> find(const std::string& id, const Owner& owner);
  bool erase(const std::string& id, const Owner& owner);

  // Drops what all others have put in, whom nobody can be any more.
  void keep_only(const std::vector<Owner>& owners);

  int64_t held_bytes() const { return held_->load(); }
  int64_t count() const;

 private:
  using Bytes = std::shared_ptr<std::atomic<int64_t>>;  // shared with what is counted, which may outlive the store
  using Entries = std::list<std::shared_ptr<const StoredResponse>>;  // the latest used first
  struct Account {
    Bytes held = std::make_shared<std::atomic<int64_t>>(0);  // stored, and on its way
    Entries entries;
  };

  template <typename T>
  std::shared_ptr<const T> counted(T value, int64_t bytes, const Account& account) const;
  Account& account_locked(const Owner& owner);
  bool make_room_locked(Account& own, int64_t bytes, int64_t entries);
  Account* victim_locked(Account& own, int64_t bytes, int64_t entries);
  Entries::iterator* find_locked(const std::string& id, const Owner& owner);
  void erase_locked(Entries& entries, Entries::iterator entry);

  const int64_t max_count_, max_bytes_;
  const Bytes held_ = std::make_shared<std::atomic<int64_t>>(0);
  mutable std::mutex mutex_;
  std::map<Owner, Account> accounts_;                         // guarded by mutex_
  std::unordered_map<std::string, Entries::iterator> by_id_;  // guarded by mutex_
};

}  // namespace tailrace
