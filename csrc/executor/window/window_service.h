// WindowService: takes what one rank sends to this rank's window, where it cannot copy into it.
//
// The rank sends an order, and after an order to put, the bytes, which are received straight into
// their place. Orders are carried out one after the other, so a signal counts only when all that
// was put before it is there. The service ends with the order to close.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "executor/window/signal_board.h"
#include "transport/group/group.h"
#include "transport/task/task.h"

namespace q7x2 {

struct WindowOrder {
  enum class Kind : uint64_t { kPut = 1, kGet, kSignal, kClose };
  Kind kind = Kind::kClose;
  uint64_t offset = 0;  ///< in bytes
  uint64_t bytes = 0;
};

/// The tags of a window's messages: those of users are not negative as int32, and those of
/// monitored barriers end with the second half of the rest.
class WindowTags {
 public:
  /// `number`: of the window among those of its group.
  explicit WindowTags(uint32_t number) : base_(uint32_t{3} << 30 | (number << 2 & ~(3U << 30))) {}

  uint32_t orders() const { return base_; }
  uint32_t puts() const { return base_ | 1; }
  uint32_t gets() const { return base_ | 2; }

 private:
  uint32_t base_;
};

class WindowService final : public Task {
 public:
  /// `owner` keeps the window's memory and the board.
  WindowService(std::shared_ptr<Group> group, int peer, WindowTags tags,
                std::span<std::byte> window, SignalBoard board, std::shared_ptr<void> owner);

  std::string name() const override;
  void start(Locked& locked) override;
  void completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) override;

 private:
  void await_order(Locked& locked);
  void carry_out(Locked& locked);

  const int peer_;
  const WindowTags tags_;
  const std::span<std::byte> window_;
  SignalBoard board_;
  const std::shared_ptr<void> owner_;
  WindowOrder order_;
};

}  // namespace q7x2
