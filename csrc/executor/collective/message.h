// MessageTask: one point-to-point message, sent or received.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/group/group.h"
#include "transport/task/task.h"

namespace q7x2 {

class MessageTask : public Task {
 public:
  enum class Direction { kSend, kReceive };
  static constexpr int kAnySource = -1;

  /// Sends `bytes` bytes at `data` to rank `peer`, or receives exactly that many from it. Messages
  /// between two ranks with the same tag arrive in the order of their sends. The memory must stay
  /// valid until `keep_alive` is dropped, which happens when the task is destroyed.
  MessageTask(std::shared_ptr<Group> group, Direction direction, int peer, uint32_t user_tag,
              void* data, size_t bytes, std::shared_ptr<void> keep_alive,
              std::chrono::milliseconds timeout);

  std::string name() const override;
  bool is_recorded() const override { return true; }
  void describe(FlightRecord& record) const override;
  /// The rank the message came from. Only after `done`.
  int source() const { return source_; }

  void start(Locked& locked) override;
  void inputs_arrived(Locked& locked) override { start(locked); }
  void completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) override;

 private:
  const Direction direction_;
  const int peer_;
  const uint32_t user_tag_;
  void* const data_;
  const size_t bytes_;
  const std::shared_ptr<void> keep_alive_;
  int source_ = -1;
};

}  // namespace q7x2
