#include "server/response_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tailrace {
namespace {

constexpr int64_t kEntryBytes = 512;  // list, map and pointers
constexpr int64_t kTurnBytes = 128;

int64_t own_bytes(const StoredResponse& response) {
  return kEntryBytes + static_cast<int64_t>(response.id.size() + response.response.size() +
                                            (response.turns.size() + 1) * sizeof(response.turns[0]));
}

int64_t turn_bytes(const std::string& items) { return kTurnBytes + static_cast<int64_t>(items.size()); }

int64_t turns_bytes(const StoredResponse::Turns& turns) {
  int64_t out = 0;
  for (const auto& turn : turns) out += turn_bytes(*turn);
  return out;
}

}  // namespace

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

ResponseStore::Account* ResponseStore::victim_locked(Account& own, int64_t bytes, int64_t entries) {
  const bool by_bytes = held_->load() + bytes > max_bytes_;
  const auto size = [&](const Account& account) {
    const int64_t held = by_bytes ? account.held->load() : static_cast<int64_t>(account.entries.size());
    return &account == &own ? held + (by_bytes ? bytes : entries) : held;
  };
  const int64_t share = (by_bytes ? max_bytes_ : max_count_) / static_cast<int64_t>(accounts_.size());
  if (!own.entries.empty() && size(own) > share) return &own;
  Account* largest = nullptr;
  for (auto& [owner, account] : accounts_) {
    const bool over = !account.entries.empty() && size(account) > share;
    if (over && (largest == nullptr || size(account) > size(*largest))) largest = &account;
  }
  if (largest == nullptr && !own.entries.empty()) return &own;  // the others' share is on its way
  return largest;
}

bool ResponseStore::make_room_locked(Account& own, int64_t bytes, int64_t entries) {
  while (held_->load() + bytes > max_bytes_ || static_cast<int64_t>(by_id_.size()) + entries > max_count_) {
    Account* victim = victim_locked(own, bytes, entries);
    if (victim == nullptr) return false;
    erase_locked(victim->entries, std::prev(victim->entries.end()));
  }
  return true;
}

std::optional<ResponseStore::Turns> ResponseStore::begin(Turns before, std::string items, const Owner& owner) {
  const int64_t bytes = turn_bytes(items);
  if (!enabled() || turns_bytes(before) + bytes > max_bytes_) return std::nullopt;
  std::lock_guard lock(mutex_);
  Account& own = account_locked(owner);
  if (!make_room_locked(own, bytes, 0)) return std::nullopt;
  before.push_back(counted(std::move(items), bytes, own));
  return before;
}

bool ResponseStore::put(StoredResponse response, std::string output) {
  const int64_t output_bytes = turn_bytes(output), entry_bytes = own_bytes(response);
  if (!enabled() || turns_bytes(response.turns) + output_bytes + entry_bytes > max_bytes_) return false;
  std::lock_guard lock(mutex_);
  Account& own = account_locked(response.owner);
  if (!make_room_locked(own, output_bytes + entry_bytes, 1)) return false;
  response.turns.push_back(counted(std::move(output), output_bytes, own));
  own.entries.push_front(counted(std::move(response), entry_bytes, own));
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
  }
}

int64_t ResponseStore::count() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(by_id_.size());
}

}  // namespace tailrace
