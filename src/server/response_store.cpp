#include "server/response_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tailrace {
namespace {

constexpr int64_t kEntryBytes = 512;  // list, map and pointers
constexpr size_t kTurnBytes = 128;

int64_t entry_bytes(const StoredResponse& response) {
  return kEntryBytes + static_cast<int64_t>(response.id.size() + response.response.size() +
                                            response.turns.size() * sizeof(response.turns[0]));
}

int64_t turn_bytes(const StoredTurn& turn) {
  size_t out = kTurnBytes + turn.text.size() + turn.items.size() * sizeof(turn.items[0]);
  for (const auto& item : turn.items) out += item.id.size();
  return static_cast<int64_t>(out);
}

}  // namespace

StoredTurn::StoredTurn(const Json& items_json) : text("[") {
  items.reserve(items_json.size());
  for (const Json& json : items_json) {
    if (!items.empty()) text += ',';
    const std::string item_text = dump_json(json);
    items.push_back({json["id"].get<std::string>(), text.size(), item_text.size()});
    text += item_text;
  }
  text += ']';
  text.shrink_to_fit();  // counted by its size
}

// From here to the last holder's end.
template <typename T>
std::shared_ptr<const T> ResponseStore::counted(T value, int64_t bytes, const Account& account) const {
  held_->fetch_add(bytes);
  account.held->fetch_add(bytes);
  return std::shared_ptr<const T>(new T(std::move(value)), [all = held_, own = account.held, bytes](const T* gone) {
    delete gone;
    all->fetch_sub(bytes);
    own->fetch_sub(bytes);
  });
}

// Drops those of others that hold nothing any more: who shares is counted by them.
ResponseStore::Account& ResponseStore::account_locked(const Owner& owner) {
  std::erase_if(accounts_, [&](const auto& account) {
    return account.first != owner && account.second.entries.empty() && account.second.held->load() == 0;
  });
  return accounts_[owner];
}

// What goes, chosen before any of it does: what would not suffice stays.
struct ResponseStore::Room {
  struct Share {
    Account* account;
    int64_t bytes, count;    // that it is to hold
    Entries::iterator kept;  // of its answers the first that goes, or else the end
    size_t num_pending;      // how many of what it has on its way stay
    bool spent = false;
  };

  int64_t total(int64_t Share::*what) const {
    int64_t out = 0;
    for (const Share& share : shares) out += share.*what;
    return out;
  }

  Share& largest(int64_t Share::*what) {
    return *std::max_element(shares.begin(), shares.end(), [&](const Share& a, const Share& b) {
      return a.spent != b.spent ? a.spent : a.*what < b.*what;
    });
  }

  // The answer of `from` that was used the longest ago goes or else, where that may, what it began last.
  void take(Share& from, bool pending_too) {
    while (from.kept != from.account->entries.begin()) {
      const auto& entry = *--from.kept;
      if (entry.use_count() > 1) continue;  // being read: its bytes would not be free in time
      entries.emplace_back(from.account, from.kept);
      --from.count;
      from.bytes -= entry_bytes(*entry) + freed_by(entry->turns);
      return;
    }
    while (pending_too && from.num_pending > 0) {
      auto begun = from.account->pending[--from.num_pending].lock();
      if (!begun || begun->turns_.empty()) continue;
      from.bytes -= freed_by(begun->turns_);
      pending.push_back(std::move(begun));
      return;
    }
    from.spent = true;
  }

  // Of the turns of something that goes, those that nothing holds which stays.
  int64_t freed_by(const Turns& turns) {
    int64_t out = 0;
    for (const auto& turn : turns) {
      if (++released[turn.get()] == turn.use_count()) out += turn_bytes(*turn);
    }
    return out;
  }

  std::vector<Share> shares;  // the first is that of the key which stores
  std::vector<std::pair<Account*, Entries::iterator>> entries;
  std::vector<std::shared_ptr<PendingResponse>> pending;
  std::unordered_map<const StoredTurn*, int64_t> released;  // how many holders of a turn go
};

bool ResponseStore::choose_room(Room& room) const {
  const auto num_shares = static_cast<int64_t>(room.shares.size());
  while (true) {
    const bool by_bytes = room.total(&Room::Share::bytes) > max_bytes_;
    if (!by_bytes && room.total(&Room::Share::count) <= max_count_) return true;
    const auto what = by_bytes ? &Room::Share::bytes : &Room::Share::count;
    const int64_t fair = std::max<int64_t>(1, (by_bytes ? max_bytes_ : max_count_) / num_shares);
    Room::Share& own = room.shares.front();
    const bool own_turn = own.*what > fair;
    Room::Share& from = own_turn ? own : room.largest(what);
    if (from.spent || from.*what <= fair) return false;
    room.take(from, /*pending_too=*/by_bytes && !own_turn);
  }
}

bool ResponseStore::make_room_locked(Account& own, int64_t bytes, int64_t count) {
  const auto share_of = [](Account& account) {
    return Room::Share{&account, account.held->load(), static_cast<int64_t>(account.entries.size()),
                       account.entries.end(), account.pending.size()};
  };
  Room room;
  room.shares.push_back(share_of(own));
  room.shares.front().bytes += bytes;
  room.shares.front().count += count;
  for (auto& [owner, account] : accounts_) {
    if (&account != &own) room.shares.push_back(share_of(account));
  }
  if (!choose_room(room)) return false;
  for (const auto& [account, entry] : room.entries) erase_locked(account->entries, entry);
  for (const auto& begun : room.pending) begun->turns_.clear();
  return true;
}

std::shared_ptr<PendingResponse> ResponseStore::begin(Turns before, const Json& items, const Owner& owner) {
  if (!enabled()) return nullptr;
  StoredTurn turn(items);
  const int64_t bytes = turn_bytes(turn);
  std::lock_guard lock(mutex_);
  Account& own = account_locked(owner);
  std::erase_if(own.pending, [](const auto& begun) { return begun.expired(); });
  if (!make_room_locked(own, bytes, 0)) return nullptr;
  auto out = std::make_shared<PendingResponse>();
  out->owner_ = owner;
  out->turns_ = std::move(before);
  out->turns_.push_back(counted(std::move(turn), bytes, own));
  own.pending.push_back(out);
  return out;
}

bool ResponseStore::put(std::shared_ptr<PendingResponse> pending, std::string id, std::string response,
                        const Json& output) {
  StoredTurn turn(output);
  std::lock_guard lock(mutex_);
  StoredResponse stored{std::move(id), pending->owner_, std::move(response), std::exchange(pending->turns_, {})};
  if (stored.turns.empty()) return false;
  stored.turns.push_back(nullptr);  // the output's place
  const int64_t output_bytes = turn_bytes(turn), bytes = entry_bytes(stored);
  Account& own = account_locked(stored.owner);
  if (!make_room_locked(own, output_bytes + bytes, 1)) return false;
  stored.turns.back() = counted(std::move(turn), output_bytes, own);
  own.entries.push_front(counted(std::move(stored), bytes, own));
  by_id_[own.entries.front()->id] = own.entries.begin();
  return true;
}

ResponseStore::Entries::iterator* ResponseStore::find_locked(const std::string& id, const Owner& owner) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() || (*found->second)->owner != owner ? nullptr : &found->second;
}

void ResponseStore::erase_locked(Entries& entries, Entries::iterator entry) {
  by_id_.erase((*entry)->id);
  entries.erase(entry);
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id, const Owner& owner) {
  std::lock_guard lock(mutex_);
  const auto* entry = find_locked(id, owner);
  if (entry == nullptr) return nullptr;
  Entries& entries = accounts_[owner].entries;
  entries.splice(entries.begin(), entries, *entry);
  return **entry;
}

bool ResponseStore::erase(const std::string& id, const Owner& owner) {
  std::lock_guard lock(mutex_);
  const auto* entry = find_locked(id, owner);
  if (entry == nullptr) return false;
  erase_locked(accounts_[owner].entries, *entry);
  return true;
}

void ResponseStore::keep_only(const std::vector<Owner>& owners) {
  std::lock_guard lock(mutex_);
  for (auto& [owner, account] : accounts_) {
    if (std::find(owners.begin(), owners.end(), owner) != owners.end()) continue;
    while (!account.entries.empty()) erase_locked(account.entries, account.entries.begin());
    for (const auto& held : account.pending) {
      if (const auto begun = held.lock()) begun->turns_.clear();
    }
  }
}

int64_t ResponseStore::count() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(by_id_.size());
}

}  // namespace tailrace
