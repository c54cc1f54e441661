// QueueWatch: whether the queue of UCX's shared memory still brings messages to this process.
//
// A process has one such queue; all other processes of its host write to it. A writer reserves an
// entry, fills it, and marks it as filled. If it is killed in between, the entry is never marked,
// and the entries behind it are never read. UCX does not notice.
//
//   read  read  reserved, never filled  filled  filled ...
//               ^ here the reader waits for ever
//
// So some time after the death of a process of this host, this process sends itself a message
// through its own queue, by a second worker. If it does not arrive in time, the queue is blocked
// for good: what others of this host have sent is lost, and a new Runtime, which has a new queue,
// must take over.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "transport/ucx/reactor.h"
#include "transport/ucx/ucx.h"

namespace q7x2 {

class QueueWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  /// Time between a death and the message. The consequences of the death are handled first.
  static constexpr std::chrono::milliseconds kPause{100};
  /// Time for the message to arrive. A living writer may have lost the processor while it filled an
  /// entry.
  static constexpr std::chrono::milliseconds kPatience{500};
  /// Minimum number of calls of `look` before the queue counts as blocked: this process itself may
  /// have been stopped.
  static constexpr int kFewestLooks = 20;

  /// Throws Error(kTransport).
  explicit QueueWatch(Reactor& reactor);
  QueueWatch(const QueueWatch&) = delete;
  QueueWatch& operator=(const QueueWatch&) = delete;

  /// A process of this host is dead. `who`: its name for error messages.
  void process_died(Locked&, TimePoint now, const std::string& who);
  /// When `look` should be called; max: no message is in progress.
  TimePoint due(Locked&) const { return due_; }
  /// To be called after a round of progress. Returns true once when the queue is blocked.
  bool look(Locked& locked, TimePoint now);
  /// Any thread.
  bool is_blocked() const { return is_blocked_.load(std::memory_order_acquire); }
  /// The error of calls that need the queue, once it is blocked.
  Error error() const;

 private:
  struct Sender {
    explicit Sender(Reactor& reactor);

    UcpWorker worker;
    UcpEndpoint endpoint;
  };

  static ucs_status_t on_message(void* arg, const void* header, size_t header_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* param);
  void send(Locked& locked, TimePoint now);

  Reactor& reactor_;
  std::string suspects_;  // processes that have died recently
  TimePoint due_ = TimePoint::max();
  // a further message, because a process died while one was in progress
  TimePoint next_ = TimePoint::max();
  std::unique_ptr<Sender> sender_;  // while a message is in progress
  TimePoint give_up_;
  int looks_ = 0;
  bool has_arrived_ = false;
  std::atomic<bool> is_blocked_{false};
};

}  // namespace q7x2
