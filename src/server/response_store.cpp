#include "server/response_store.h"

#include <utility>

namespace tailrace {
namespace {

constexpr int64_t kEntryBytes = 512;  // list, map and pointers
constexpr int64_t kTurnBytes = 128;

int64_t own_bytes(const StoredResponse& response) {
  return kEntryBytes + static_cast<int64_t>(response.id.size() + response.response.size() +
                                            response.turns.size() * sizeof(response.turns[0]));
}

int64_t turn_bytes(const std::string& items) { return kTurnBytes + static_cast<int64_t>(items.size()); }

// Counted from here to the last holder's end.
template <typename T>
std::shared_ptr<const T> counted(T value, int64_t bytes, const std::shared_ptr<std::atomic<int64_t>>& held) {
  held->fetch_add(bytes);
  return std::shared_ptr<const T>(new T(std::move(value)), [held, bytes](const T* gone) {
    delete gone;
    held->fetch_sub(bytes);
  });
}

}  // namespace

std::shared_ptr<const std::string> ResponseStore::make_turn(std::string items) const {
  const int64_t bytes = turn_bytes(items);
  return counted(std::move(items), bytes, held_);
}

bool ResponseStore::put(StoredResponse response) {
  int64_t whole = own_bytes(response);
  for (const auto& turn : response.turns) whole += turn_bytes(*turn);
  if (!enabled() || whole > max_bytes_) return false;
  const int64_t bytes = own_bytes(response);
  auto entry = counted(std::move(response), bytes, held_);
  std::lock_guard lock(mutex_);
  entries_.push_front(std::move(entry));
  by_id_[entries_.front()->id] = entries_.begin();
  while (entries_.size() > 1 && (static_cast<int64_t>(entries_.size()) > max_count_ || held_->load() > max_bytes_)) {
    erase_locked(std::prev(entries_.end()));
  }
  return true;
}

ResponseStore::Entries::iterator ResponseStore::find_locked(const std::string& id,
                                                            const std::shared_ptr<const void>& owner) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() || (*found->second)->owner != owner ? entries_.end() : found->second;
}

void ResponseStore::erase_locked(Entries::iterator entry) {
  by_id_.erase((*entry)->id);
  entries_.erase(entry);
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id,
                                                          const std::shared_ptr<const void>& owner) {
  std::lock_guard lock(mutex_);
  const auto entry = find_locked(id, owner);
  if (entry == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, entry);
  return *entry;
}

bool ResponseStore::erase(const std::string& id, const std::shared_ptr<const void>& owner) {
  std::lock_guard lock(mutex_);
  const auto entry = find_locked(id, owner);
  if (entry == entries_.end()) return false;
  erase_locked(entry);
  return true;
}

}  // namespace tailrace
