// Recent: a map that remembers what was used last, and forgets the rest.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <utility>

namespace q7x2 {

template <typename Key, typename Value>
class Recent {
 public:
  /// `capacity`: entries, at least one.
  explicit Recent(size_t capacity) : capacity_(capacity) {}

  /// What is remembered for the key, as if it had just been added; null: nothing.
  Value* find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->second;
  }

  /// Remembers a new key. In place of the one that was not used for longest, where it is full.
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
  Entries entries_;  // used last, first
  std::map<Key, typename Entries::iterator> places_;
};

}  // namespace q7x2
