// QueueWatch: whether the queue of UCX's shared memory still brings messages to this process.
//
// A process has one such queue, into which all others of its host write. A writer takes a place in
// it, fills it, and marks it as filled. If it is killed in between, nobody ever marks the place,
// and what others write behind it is not read. UCX does not notice.
//
//   read  read  taken, never filled  filled  filled ...
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
  /// After a death. Its consequences come first.
  static constexpr std::chrono::milliseconds kPause{100};
  /// For the message to arrive. A living writer may have lost the processor while it filled a
  /// place.
  static constexpr std::chrono::milliseconds kPatience{500};
  /// A process that was stopped itself has not looked.
  static constexpr int kFewestLooks = 20;

  /// Throws Error(kTransport).
  explicit QueueWatch(Reactor& reactor);
  QueueWatch(const QueueWatch&) = delete;
  QueueWatch& operator=(const QueueWatch&) = delete;

  /// A process of this host is dead. `who`: for people.
  void process_died(Locked&, TimePoint now, const std::string& who);
  /// When `look` should be called; max: there is nothing to look for.
  TimePoint due(Locked&) const { return due_; }
  /// After a round of progress. True, once: the queue is blocked.
  bool look(Locked& locked, TimePoint now);
  /// Any thread.
  bool is_blocked() const { return is_blocked_.load(std::memory_order_acquire); }
  /// What calls raise that need the queue, once it is blocked.
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
  std::string suspects_;  // processes that have died lately
  TimePoint due_ = TimePoint::max();
  TimePoint next_ = TimePoint::max();  // message, because a process died while one was on its way
  std::unique_ptr<Sender> sender_;     // while a message is on its way
  TimePoint give_up_;
  int looks_ = 0;
  bool has_arrived_ = false;
  std::atomic<bool> is_blocked_{false};
};

}  // namespace q7x2
