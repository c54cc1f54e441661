// MessageQueue: the messages that have arrived in one or several `Mail`s, for the one thread that
// reads them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/group/group.h"
#include "transport/task/task.h"

namespace q7x2 {

/// Bytes and their owner.
struct Bytes {
  std::shared_ptr<std::byte> data;
  size_t size = 0;

  static Bytes make(size_t size);
};

/// A message that has arrived.
struct PeerMessage {
  int sender = 0;
  std::vector<int64_t> header;  ///< without the length of the payload
  Bytes payload;
};

class MessageQueue {
 public:
  enum class Reader {
    /// Makes the transport's progress while it waits, so a message needs no hand-over between
    /// threads.
    kDrives,
    /// Waits most of the time while another thread computes, and leaves progress to others.
    kSleeps,
  };

  /// Called by the reader. Returns nothing if the message is not complete yet; may throw.
  using Arrival = std::function<std::optional<PeerMessage>()>;

  /// `group`: one of the groups of the messages.
  MessageQueue(const std::shared_ptr<Group>& group, Reader reader);
  MessageQueue(const MessageQueue&) = delete;
  MessageQueue& operator=(const MessageQueue&) = delete;

  /// Any thread, without the reactor's lock.
  void put(PeerMessage message);
  void add(Locked& locked, Arrival arrival);
  /// One thread at a time. Waits for the next arrival, and calls it. Nothing if `deadline` passed,
  /// or if that arrival completed no message. Throws the exception of the arrival.
  std::optional<PeerMessage> receive(TimePoint deadline);

 private:
  class Signal;

  bool wait(TimePoint deadline);

  const Reader reader_;
  const std::shared_ptr<Signal> signal_;
  std::mutex mutex_;  // guards the next member
  std::deque<Arrival> arrivals_;
  std::condition_variable has_arrivals_;
  size_t added_ = 0;  // guarded by the reactor's lock
  size_t taken_ = 0;  // used only by the reader
};

}  // namespace q7x2
