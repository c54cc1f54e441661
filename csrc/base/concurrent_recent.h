// ConcurrentRecent: a map of bounded size that threads read without a lock.
//
// A reader counts itself, and reads the newest snapshot of the map. A writer replaces the snapshot
// and frees old ones when it sees no reader. If the map is full, it removes an entry that was not
// read since it was last considered for removal (the clock algorithm, or second chance).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace q7x2 {

template <typename Key, typename Value>
class ConcurrentRecent {
 public:
  /// `capacity`: number of entries, at least one.
  explicit ConcurrentRecent(size_t capacity) : capacity_(capacity) {}
  ~ConcurrentRecent() { delete entries_.load(); }
  ConcurrentRecent(const ConcurrentRecent&) = delete;
  ConcurrentRecent& operator=(const ConcurrentRecent&) = delete;

  /// Null if there is no entry for the key. Any thread; waits for nothing.
  std::shared_ptr<Value> find(const Key& key) const {
    const Reader reader(readers_);
    const Entries& entries = *entries_.load();
    const auto found = std::ranges::lower_bound(entries, key, {}, &Entry::key);
    if (found == entries.end() || (*found)->key != key) return nullptr;
    (*found)->is_used.store(true, std::memory_order_relaxed);
    return (*found)->value;
  }

  // One thread at a time.

  /// Adds a new key.
  void add(const Key& key, std::shared_ptr<Value> value) {
    auto entries = std::make_unique<Entries>(*entries_.load());
    if (entries->size() >= capacity_) {
      while (by_age_.front()->is_used.exchange(false)) {
        by_age_.push_back(std::move(by_age_.front()));
        by_age_.pop_front();
      }
      std::erase(*entries, by_age_.front());
      by_age_.pop_front();
    }
    auto entry = std::make_shared<Entry>(key, std::move(value));
    by_age_.push_back(entry);
    entries->insert(std::ranges::lower_bound(*entries, key, {}, &Entry::key), std::move(entry));
    replace(std::move(entries));
  }

  void clear() {
    by_age_.clear();
    replace(std::make_unique<Entries>());
  }

  /// All values, in the order of their keys.
  std::vector<std::shared_ptr<Value>> values() const {
    std::vector<std::shared_ptr<Value>> all;
    for (const std::shared_ptr<Entry>& entry : *entries_.load()) all.push_back(entry->value);
    return all;
  }

 private:
  struct Entry {
    Entry(const Key& of, std::shared_ptr<Value> its) : key(of), value(std::move(its)) {}
    const Key key;
    const std::shared_ptr<Value> value;
    std::atomic<bool> is_used{false};
  };
  using Entries = std::vector<std::shared_ptr<Entry>>;  // in the order of their keys

  struct Reader {
    explicit Reader(std::atomic<int>& readers) : count(readers) { ++count; }
    ~Reader() { --count; }
    std::atomic<int>& count;
  };

  // A reader that the writer does not see comes later, and reads the new snapshot.
  void replace(std::unique_ptr<const Entries> entries) {
    retired_.emplace_back(entries_.exchange(entries.release()));
    if (readers_ == 0) retired_.clear();
  }

  const size_t capacity_;
  mutable std::atomic<int> readers_{0};
  std::atomic<const Entries*> entries_{new Entries};
  std::vector<std::unique_ptr<const Entries>> retired_;
  std::deque<std::shared_ptr<Entry>> by_age_;
};

}  // namespace q7x2
