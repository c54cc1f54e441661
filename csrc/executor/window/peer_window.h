// PeerWindow: memory of each rank that the other ranks write and read without its help.
//
// Ranks of one host copy into each other's memory: by address if the windows lie in memory that
// they share, otherwise through the kernel (base/process_memory.h). Between other ranks, and where
// the kernel refuses, puts and signals are messages, and a WindowService of the target takes them.
//
// What one rank puts and signals to another takes effect in the order of its calls: once a signal
// counts, all that was put before it is there. Nothing orders the calls of different ranks.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/window/signal_board.h"
#include "executor/window/window_service.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"
#include "transport/shm/shared_memory.h"

namespace q7x2 {

/// Its functions may be called from any thread, those of one rank for one peer not at once.
class PeerWindow {
 public:
  /// What the ranks say to each other while a window is made or closed: gets equally many bytes of
  /// each rank, by rank. Throws if a rank has failed.
  using Exchange = std::function<std::vector<std::byte>(std::span<const std::byte> mine)>;
  struct Options {
    uint32_t number = 0;          ///< among the windows of the group; equal on all ranks
    uint64_t agreed = 0;          ///< something that all ranks must give equally
    size_t bytes = 0;             ///< the length of this rank's window
    std::byte* memory = nullptr;  ///< null: memory that the ranks of the host share
    std::shared_ptr<void> owner;  ///< keeps the memory; null: the caller does
  };

  /// All ranks of the group must call it. Throws Error(kMismatch) if they do not agree.
  static std::shared_ptr<PeerWindow> make(const std::shared_ptr<Runtime>& runtime,
                                          std::shared_ptr<Group> group, const Options& options,
                                          const Exchange& exchange);
  ~PeerWindow();
  PeerWindow(const PeerWindow&) = delete;
  PeerWindow& operator=(const PeerWindow&) = delete;

  std::span<std::byte> memory() const;
  /// The length of `rank`'s window.
  size_t bytes(int rank) const { return sides_[index(rank)].bytes; }
  /// Whether this rank copies into `rank`'s memory.
  bool is_direct(int rank) const { return sides_[index(rank)].is_direct; }

  // They start a transfer, and return what is to be waited for before `data` may be used again;
  // empty: it is over. Offsets are in bytes. Throw Error: kInvalidArgument if the place is not in
  // `rank`'s window, kPeerLeft if its window is closed, others if the group has failed.

  using Tasks = std::vector<std::shared_ptr<Task>>;
  Tasks put(int rank, size_t offset, const void* data, size_t bytes, std::shared_ptr<void> owner,
            std::chrono::milliseconds timeout);
  Tasks get(int rank, size_t offset, void* data, size_t bytes, std::shared_ptr<void> owner,
            std::chrono::milliseconds timeout);
  Tasks signal(int rank, std::chrono::milliseconds timeout);

  /// The number of the next signal of `rank` that nobody waits for yet.
  uint64_t next_signal(int rank) { return ++sides_[index(rank)].expected; }
  /// Nobody waits for it any more; nothing happens if somebody waits for a later one.
  void give_back(int rank, uint64_t number) {
    sides_[index(rank)].expected.compare_exchange_strong(number, number - 1);
  }
  bool has_signal(int rank, uint64_t number) const;
  /// Waits for it. Throws Error: kTimeout, kPeerLeft if the rank has left, others.
  void wait_signal(int rank, uint64_t number, std::chrono::milliseconds timeout);

  /// All ranks must call it, after their last call: waits until all that was sent has arrived.
  void close(const Exchange& exchange, std::chrono::milliseconds timeout);
  bool is_closed() const { return is_closed_; }

 private:
  /// The window and its board, in a segment that is shared if the host has such memory.
  struct Memory;
  /// What each rank publishes.
  struct Address;
  /// The way to one rank.
  struct Side {
    size_t bytes = 0;
    bool is_direct = false;
    pid_t process = 0;
    uint64_t address = 0;                  ///< where its window is in its process
    std::unique_ptr<MappedMemory> mapped;  ///< its shared segment; null: not mapped
    std::byte* shared = nullptr;           ///< its window, if that lies in the segment
    std::optional<SignalBoard> board;      ///< empty: messages go there
    std::atomic<uint64_t> expected{0};     ///< signals that were or are waited for
    std::mutex turn;                       ///< an order and its bytes are sent in one go
  };

  PeerWindow(const std::shared_ptr<Runtime>& runtime, std::shared_ptr<Group> group,
             const Options& options);
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  int rank() const { return group_->rank(); }
  void open(uint64_t agreed, const Exchange& exchange);
  Address own_address(uint64_t agreed) const;
  /// Fills in how the rank can be reached.
  void reach(int rank, const Address& address);
  void map(int rank, const Address& address);
  /// Checks the place, and that the window is open.
  void check(const char* call, int rank, size_t offset, size_t bytes) const;
  void check_open(const char* call, int rank) const;
  /// Sends the order and then, if any, the message with its bytes.
  Tasks order(int rank, WindowOrder order, const std::function<std::shared_ptr<Task>()>& bytes,
              std::chrono::milliseconds timeout);
  std::shared_ptr<Task> message(bool sends, int rank, uint32_t tag, void* data, size_t bytes,
                                std::shared_ptr<void> owner, std::chrono::milliseconds timeout);
  std::string text(const std::string& what) const;

  const std::shared_ptr<Runtime> runtime_;
  const std::shared_ptr<Group> group_;
  const WindowTags tags_;
  std::shared_ptr<Memory> memory_;  // the services keep it, too
  std::vector<Side> sides_;         // by rank
  std::vector<std::shared_ptr<WindowService>> services_;
  std::atomic<bool> is_closed_{false};
};

}  // namespace q7x2
