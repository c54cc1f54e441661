// Recycled: arrays that are used during one call, in memory that is kept for the next call.
//
// When long arrays are freed, the C library may return them to the system, and the system clears
// every page of a new one when it is first used. For arrays that are read once, that takes as long
// as the work on them.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace q7x2 {

/// Memory from a store that the whole process shares, and to which it returns. Thread-safe.
class RecycledMemory {
 public:
  RecycledMemory() = default;
  explicit RecycledMemory(size_t bytes);
  RecycledMemory(RecycledMemory&& other) noexcept { swap(other); }
  RecycledMemory& operator=(RecycledMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~RecycledMemory();

  std::byte* data() const { return data_.get(); }

  /// Maximum number of bytes that the store keeps.
  static constexpr size_t kMostKept = size_t{64} << 20;

 private:
  void swap(RecycledMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  std::unique_ptr<std::byte[]> data_;
  size_t bytes_ = 0;
};

/// `size` elements with undefined contents.
template <class T>
class Recycled {
  static_assert(std::is_trivial_v<T>);

 public:
  Recycled() = default;
  explicit Recycled(size_t size) : memory_(size * sizeof(T)), size_(size) {}

  size_t size() const { return size_; }
  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }

 private:
  RecycledMemory memory_;
  size_t size_ = 0;
};

}  // namespace q7x2
