// Task: something a group has in progress on the engine, a collective or a message.
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

#include <ucs/type/status.h>

#include "base/error.h"
#include "transport/host_channel.h"

namespace q7x2 {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

class Engine;
class Group;
class Task;

/// What a message between two hosts goes over: the network that all hosts share, or a private link
/// of the two beside it.
enum class Wire : uint8_t { kShared, kPrivate };

/// One UCX request of a task. Owned by the engine, linked into its task while in progress.
struct PendingRequest {
  Task* task = nullptr;
  uint32_t token = 0;  ///< what the task calls it
  int peer = -1;       ///< rank in the group; -1 for any source
  bool is_receive = false;
  Wire wire = Wire::kShared;
  bool completed = false;   ///< UCX has called back
  void* request = nullptr;  ///< UCX's handle; null once it completed
  PendingRequest* previous = nullptr;
  PendingRequest* next = nullptr;

  // When it is complete, until the engine tells the task.
  ucs_status_t status = UCS_OK;
  size_t length = 0;  ///< receives: of the message
  uint64_t tag = 0;   ///< receives: of the message
  PendingRequest* next_complete = nullptr;
};

/// Life: made by the caller, `Engine::submit`, started, progressed by whoever drives the engine,
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
  /// Calls `callback` once, when done, from the engine's notifier thread without any lock held;
  /// from here if it is done and the engine has stopped.
  void notify(std::function<void()> callback);

  Group& group() const noexcept { return *group_; }
  const std::shared_ptr<Group>& group_pointer() const noexcept { return group_; }
  TimePoint submitted() const noexcept { return submitted_; }
  bool was_submitted() const noexcept { return submitted_ != TimePoint{}; }
  /// Only after `done`.
  TimePoint finished() const noexcept { return finished_; }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }

  /// What has to be submitted right before it; null: nothing.
  virtual std::shared_ptr<Task> precursor() { return nullptr; }
  /// What it is, for messages: "all_reduce (sequence 12, 4096 bytes of float32, ring)".
  virtual std::string name() const = 0;

 protected:
  // All below run under the engine's lock.

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
  /// What it waits for, for time-outs: "receive from ranks 1, 3". Default: from its requests.
  virtual std::string waiting_for() const;
  /// Collectives: at most a fixed number run at once in a group, the rest queue.
  virtual bool takes_turn() const { return false; }
  /// Takes the memory it needs to start. False: there is none now, to be asked again.
  virtual bool reserve() { return true; }
  /// Called after Group::stall: goes on if it can, and says whether it did.
  virtual bool stalled() { return false; }

  void finish();
  void fail(const Error& error);
  void set_ready(size_t bytes);
  /// Its number among the group's tasks that take turns.
  uint64_t sequence() const { return sequence_; }

 protected:
  /// "...: Timed out after 500 ms, waiting for ...".
  Error timeout_error() const;

 private:
  friend class Engine;
  friend class Group;

  void mark_done();

  const std::shared_ptr<Group> group_;
  const std::chrono::milliseconds timeout_;
  TimePoint submitted_;
  TimePoint finished_;
  TimePoint deadline_ = TimePoint::max();
  TimePoint next_inquiry_ = TimePoint::max();

  std::atomic<bool> done_{false};
  std::atomic<size_t> ready_bytes_{0};
  std::optional<Error> error_;
  std::mutex callback_mutex_;  // guards the next two
  std::function<void()> callback_;
  bool notified_ = false;

  // The engine's bookkeeping.
  PendingRequest* requests_ = nullptr;
  size_t active_index_ = kInactive;
  bool started_ = false;
  uint64_t sequence_ = 0;

  static constexpr size_t kInactive = ~size_t{0};
};

}  // namespace q7x2
