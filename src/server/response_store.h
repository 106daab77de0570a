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
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/json.h"

namespace tailrace {

// Items of a conversation as a JSON array, and where each is in it: what is read item by item is not parsed again.
struct StoredTurn {
  struct Item {
    std::string id;
    size_t begin, size;
  };

  explicit StoredTurn(const Json& items_json);
  std::string_view item(size_t index) const {
    return std::string_view(text).substr(items[index].begin, items[index].size);
  }

  std::string text;
  std::vector<Item> items;
};

struct StoredResponse {
  using Owner = std::shared_ptr<const void>;
  using Turns = std::vector<std::shared_ptr<const StoredTurn>>;

  std::string id;
  Owner owner;           // whose it is: the use of an API key; null without keys
  std::string response;  // as JSON
  // The conversation, input and output in turn. The last is this answer's output; those before its input are shared
  // with the answers that it goes on from, and outlive them.
  Turns turns;
};

// A request whose answer is to be stored: what it says, held and counted until its answer is put, it ends without one,
// or its room is given up.
class PendingResponse {
 private:
  friend class ResponseStore;
  StoredResponse::Owner owner_;
  StoredResponse::Turns turns_;  // guarded by the store; empty: given up
};

// Thread-safe. What is stored and what is on its way takes max_bytes at most. Where there is no room, keys that hold
// more than their share, the bound divided by the keys that hold anything, make it. The one that stores gives up its
// own answers, used the longest ago first, or gets none where these do not suffice. Where it keeps within its share,
// the one that holds most gives up answers, and then what it has on its way, the last begun first. So nobody loses
// what is within their share to others, and nothing goes that does not make the room.
class ResponseStore {
 public:
  using Owner = StoredResponse::Owner;
  using Turns = StoredResponse::Turns;

  // max_count 0: nothing is stored.
  ResponseStore(int64_t max_count, int64_t max_bytes) : max_count_(max_count), max_bytes_(max_bytes) {}

  bool enabled() const { return max_count_ > 0; }

  // `before` (of the answer that `owner` goes on from) and `items` behind it: what a request says whose answer is to be
  // stored. Null where there is no room.
  std::shared_ptr<PendingResponse> begin(Turns before, const Json& items, const Owner& owner);

  // The answer to what `pending` says: `response` (JSON), and its items `output`. False where there is no room, or that
  // of `pending` was given up.
  bool put(std::shared_ptr<PendingResponse> pending, std::string id, std::string response, const Json& output);

  // Null where there is none of this id that `owner` put in.
  std::shared_ptr<const StoredResponse> find(const std::string& id, const Owner& owner);
  bool erase(const std::string& id, const Owner& owner);

  // Drops what all others have put in or begun, whom nobody can be any more.
  void keep_only(const std::vector<Owner>& owners);

  int64_t held_bytes() const { return held_->load(); }
  int64_t count() const;

 private:
  using Bytes = std::shared_ptr<std::atomic<int64_t>>;  // shared with what is counted, which may outlive the store
  using Entries = std::list<std::shared_ptr<const StoredResponse>>;  // the latest used first
  struct Account {
    Bytes held = std::make_shared<std::atomic<int64_t>>(0);  // stored, and on its way
    Entries entries;
    std::vector<std::weak_ptr<PendingResponse>> pending;  // the last begun last
  };
  struct Room;  // what has to go

  template <typename T>
  std::shared_ptr<const T> counted(T value, int64_t bytes, const Account& account) const;
  Account& account_locked(const Owner& owner);
  bool choose_room(Room& room) const;
  bool make_room_locked(Account& own, int64_t bytes, int64_t count);
  Entries::iterator* find_locked(const std::string& id, const Owner& owner);
  void erase_locked(Entries& entries, Entries::iterator entry);

  const int64_t max_count_, max_bytes_;
  const Bytes held_ = std::make_shared<std::atomic<int64_t>>(0);
  mutable std::mutex mutex_;
  std::map<Owner, Account> accounts_;                         // guarded by mutex_
  std::unordered_map<std::string, Entries::iterator> by_id_;  // guarded by mutex_
};

}  // namespace tailrace
