// Task: something a group has in progress, a collective or a message.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "transport/host_channel.h"
#include "transport/locked.h"
#include "transport/request.h"

namespace q7x2 {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

class Group;

/// Life: made by the caller, `Runtime::submit`, started, progressed by whoever drives the reactor,
/// done. It stays registered until its last UCX request has come back, also after an error, because
/// UCX may touch its memory until then.
class Task : public std::enable_shared_from_this<Task> {
 public:
  Task(std::shared_ptr<Group> group, std::chrono::milliseconds timeout);
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  /// Any thread. Once true, results and `error` may be read.
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  /// Any thread. So many bytes from the beginning of the output are final and may be read already.
  size_t ready_bytes() const noexcept { return ready_bytes_.load(std::memory_order_acquire); }
  /// Set if it did not succeed. Only after `done`.
  const std::optional<Error>& error() const noexcept { return error_; }
  /// Calls `callback` once, when done, from a thread of the notifier without any lock held;
  /// from here if it is done and the runtime has stopped.
  void notify(std::function<void()> callback);

  Group& group() const noexcept { return *group_; }
  const std::shared_ptr<Group>& group_pointer() const noexcept { return group_; }
  TimePoint submitted() const noexcept { return submitted_; }
  /// Only after `done`.
  TimePoint finished() const noexcept { return finished_; }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }

  /// What has to be submitted right before it; null: nothing.
  virtual std::shared_ptr<Task> precursor() { return nullptr; }
  /// What it is, for messages: "all_reduce (sequence 12, 4096 bytes of float32, ring)".
  virtual std::string name() const = 0;
  /// Collectives: at most a fixed number run at once in a group, the rest queue.
  virtual bool takes_turn() const { return false; }
  /// What it waits for, for messages: "messages from rank 1, 3".
  std::string waiting_for() const;

  // For the transport, which calls the hooks below by these.

  /// What the transport keeps about a task.
  struct Record {
    TimePoint deadline = TimePoint::max();
    TimePoint next_inquiry = TimePoint::max();
    TimePoint warn_at = TimePoint::max();  ///< that it waits for long
    RequestList requests;
    std::optional<size_t> active_index;  ///< among the active tasks
    bool is_started = false;
    uint64_t sequence = 0;  ///< among the group's tasks that take turns
  };
  Record& record(Locked&) { return record_; }
  void set_submitted(Locked&, TimePoint now);
  void begin(Locked&) { start(); }
  /// A request of the task is complete, by success or because the message was too long.
  void complete(Locked&, const PendingRequest& pending);
  void deliver(Locked&, uint32_t token, const HostChannel::Message& message) {
    arrived(token, message);
  }
  void strand(Locked&, const Error& error) { stranded(error); }
  void expire(Locked&) { timed_out(); }
  bool try_reserve(Locked&) { return reserve(); }
  bool resume(Locked&) { return stalled(); }
  void fail(Locked&, const Error& error);

 protected:
  // Hooks: called by a thread that holds the reactor's lock.

  /// Posts the first requests.
  virtual void start() = 0;
  /// The request called `token` completed with success; `length` and `tag` for receives.
  virtual void completed(uint32_t token, size_t length, uint64_t tag) = 0;
  /// The message for the receive called `token` is there, in shared memory. See
  /// Group::receive_shared.
  virtual void arrived(uint32_t token, const HostChannel::Message& message);
  /// The request called `token` met a longer message than there was room for. Default: fails.
  virtual void truncated(uint32_t token, uint64_t tag);
  /// A rank that it needs has left the group. Default: fails.
  virtual void stranded(const Error& error) { fail(error); }
  /// Its deadline passed. Default: fails it with what it was waiting for.
  virtual void timed_out();
  /// Takes the memory it needs to start. False: there is none now, to be asked again.
  virtual bool reserve() { return true; }
  /// Called after Group::stall: goes on if it can, and says whether it did.
  virtual bool stalled() { return false; }

  // For hooks.

  void finish();
  void fail(const Error& error);
  void set_ready(size_t bytes);
  /// Its number among the group's tasks that take turns.
  uint64_t sequence() const { return record_.sequence; }
  /// "...: Timed out after 500 ms, waiting for ...". It says who is late.
  Error timeout_error();

 private:
  void mark_done(Locked& locked);

  const std::shared_ptr<Group> group_;
  const std::chrono::milliseconds timeout_;
  TimePoint submitted_;
  TimePoint finished_;

  std::atomic<bool> done_{false};
  std::atomic<size_t> ready_bytes_{0};
  std::optional<Error> error_;
  std::mutex callback_mutex_;  // guards the next two
  std::function<void()> callback_;
  bool notified_ = false;

  Record record_;
};

}  // namespace q7x2
