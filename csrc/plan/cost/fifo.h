// Fifo: a queue in one block of memory that is used again and again.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace q7x2 {

/// `Item`: a plain value. An empty queue that was never used takes no memory.
template <typename Item>
class Fifo {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  /// The queue must not be empty, here and below.
  const Item& front() const { return items_[first_]; }
  const Item& back() const { return items_[(first_ + size_ - 1) & (items_.size() - 1)]; }

  void push_back(const Item& item) {
    if (size_ == items_.size()) grow();
    items_[(first_ + size_++) & (items_.size() - 1)] = item;
  }
  void pop_front() {
    first_ = (first_ + 1) & (items_.size() - 1);
    --size_;
  }

 private:
  void grow() {
    constexpr size_t kLeast = 4;
    std::vector<Item> items(items_.empty() ? kLeast : 2 * items_.size());
    for (size_t i = 0; i < size_; ++i) items[i] = items_[(first_ + i) & (items_.size() - 1)];
    items_ = std::move(items);
    first_ = 0;
  }

  std::vector<Item> items_;  // as many as a power of two, used as a ring
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace q7x2
