// Recent: a map of bounded size that keeps the entries that were used last.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <utility>

namespace q7x2 {

template <typename Key, typename Value>
class Recent {
 public:
  /// `capacity`: number of entries, at least one.
  explicit Recent(size_t capacity) : capacity_(capacity) {}

  /// The value for the key, which then counts as the last one used; null if there is none.
  Value* find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->second;
  }

  /// Adds a new key. If the map is full, it replaces the entry that was not used for longest.
  Value& add(const Key& key, Value value) {
    entries_.emplace_front(key, std::move(value));
    places_[key] = entries_.begin();
    if (entries_.size() > capacity_) {
      places_.erase(entries_.back().first);
      entries_.pop_back();
    }
    return entries_.front().second;
  }

  void clear() {
    places_.clear();
    entries_.clear();
  }

  size_t size() const { return entries_.size(); }

 private:
  using Entries = std::list<std::pair<Key, Value>>;

  size_t capacity_;
  Entries entries_;  // the last one used is first
  std::map<Key, typename Entries::iterator> places_;
};

}  // namespace q7x2
