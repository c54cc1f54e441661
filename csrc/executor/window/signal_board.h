// SignalBoard: how many signals each rank has given to one rank's window, and a way to sleep until
// another one comes. It lies in memory that the ranks of a host share.
//
// Each counter has one writer at a time: the rank of this host that it belongs to, or the window's
// own service, for a rank whose messages it receives.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace q7x2 {

class SignalBoard {
 public:
  /// Bytes for a group of that many ranks.
  static size_t bytes(int ranks) {
    return sizeof(Head) + static_cast<size_t>(ranks) * sizeof(std::atomic<uint64_t>);
  }
  /// `memory` is aligned to 64 bytes, zero at first, and outlives the board.
  explicit SignalBoard(std::byte* memory)
      : head_(*reinterpret_cast<Head*>(memory)),
        counts_(reinterpret_cast<std::atomic<uint64_t>*>(memory + sizeof(Head))) {}

  using Token = std::array<std::byte, 16>;
  /// By which another process knows that it reads the memory of the right process.
  Token& token() { return head_.token; }

  void signal(int rank);
  uint64_t count(int rank) const { return counts_[rank].load(std::memory_order_acquire); }
  /// Returns when `rank` has given `count` signals, or after about that long.
  void sleep(int rank, uint64_t count, std::chrono::milliseconds limit);

  /// The window takes nothing any more.
  void close() { head_.is_closed.store(1, std::memory_order_release); }
  bool is_closed() const { return head_.is_closed.load(std::memory_order_acquire) != 0; }

 private:
  struct alignas(64) Head {
    std::atomic<uint32_t> news;     // a futex: changes with each signal that somebody sleeps for
    std::atomic<uint32_t> waiters;  // how many sleep, or are about to
    std::atomic<uint32_t> is_closed;
    Token token;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

  Head& head_;
  std::atomic<uint64_t>* const counts_;
};

}  // namespace q7x2
