// Task: something a group has in progress, a collective or a message.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "ledger/traffic.h"
#include "transport/task/host_message.h"
#include "transport/task/job.h"
#include "transport/task/wait_meter.h"
#include "transport/ucx/locked.h"
#include "transport/ucx/request.h"

namespace q7x2 {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

class Group;
class InputLatch;
class NameTable;
class TaskHost;
struct FlightRecord;

/// Life: made by the caller, `Runtime::submit`, started, progressed by whoever drives the reactor,
/// over, done. It is over when it has its result or its error. It is done, and says so, when its
/// last request and its last job have come back too. Until then the network or a thread may touch
/// its memory.
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
  /// Before it is submitted: it reads its memory when `inputs` is open.
  void set_inputs(std::shared_ptr<InputLatch> inputs) { inputs_ = std::move(inputs); }
  /// Calls `callback` once, when done, from a thread of the notifier without any lock held;
  /// from here if it is done and the runtime has stopped.
  void notify(std::function<void()> callback);

  Group& group() const noexcept { return *group_; }
  const std::shared_ptr<Group>& group_pointer() const noexcept { return group_; }
  TimePoint submitted() const noexcept { return submitted_; }
  /// Only after `done`.
  TimePoint finished() const noexcept { return finished_; }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }

  /// What it is, for messages: "all_reduce (sequence 12, 4096 bytes of float32, ring)".
  virtual std::string name() const = 0;
  /// Collectives: at most a fixed number run at once in a group, the rest queue.
  virtual bool takes_turn() const { return false; }
  /// Whether another task makes the call if this one fails: its error is not the call's.
  virtual bool is_attempt() const { return false; }
  /// Whether the group can go on if it fails. Only a collective can, on whose result nothing
  /// depends that all ranks must know alike. `waits`: it waits for its turn, and fails when it
  /// begins.
  virtual bool can_fail_alone(bool /*waits*/) const { return false; }
  /// Attempts: members of the group from this one on are servers, without which the call can be
  /// made. One that does not answer ends the group.
  virtual int first_server() const { return std::numeric_limits<int>::max(); }
  /// Whether the flight recorder keeps it: what a user calls, and what prepares such a call.
  virtual bool is_recorded() const { return false; }
  /// Fills in what is known when it is submitted: the operation, its sizes, its peer.
  virtual void describe(FlightRecord&) const {}
  /// Fills in how far it is, and what it has computed. Called when it is over, and for a dump.
  virtual void report(FlightRecord&, NameTable&) const {}
  /// What it waits for, for messages: "messages from rank 1, 3".
  std::string waiting_for() const;

  // For the transport.

  /// What the transport keeps about a task.
  struct Record {
    TimePoint deadline = TimePoint::max();
    TimePoint next_inquiry = TimePoint::max();
    TimePoint warn_at = TimePoint::max();  ///< that it waits for long
    RequestList requests;
    size_t jobs = 0;                     ///< queued or running
    std::optional<size_t> active_index;  ///< among the active tasks
    bool is_started = false;
    TimePoint started;
    uint64_t sequence = 0;                    ///< among the group's tasks that take turns
    TimePoint over_since = TimePoint::max();  ///< it is over, but not done
    uint64_t flight = 0;                      ///< its record in the flight recorder; 0: it has none
    uint32_t flight_group = 0;                ///< its group there; 0: it is not recorded
    bool has_waited = false;                  ///< for its turn
    bool has_moved = false;  ///< a message was sent or received since the last look
    Traffic traffic;
    WaitMeter waits;
  };
  Record& record(Locked&) { return record_; }
  void set_submitted(Locked&, TimePoint now);
  /// It has its result or its error, and starts nothing any more.
  bool is_over(Locked&) const { return is_over_; }
  void finish(Locked& locked);
  void fail(Locked& locked, const Error& error);
  /// Does `step` because of a message from or to `rank`, or of several (-1). That ends a wait,
  /// unless a job is out.
  template <typename Step>
  void after_wait(Locked& locked, int rank, const Step& step) {
    if (record_.jobs == 0) record_.waits.woken_by(rank);
    step();
    // If it is done, it has looked at the clock.
    if (record_.waits.is_ending() && !is_over(locked)) record_.waits.end(Clock::now());
  }
  /// A request or a job has come back: it is done if it is over and this was the last.
  void settle(Locked& locked);

  // Hooks, for the transport to call. They must not block.

  /// What has to be submitted right before it; null: nothing.
  virtual std::shared_ptr<Task> prerequisite(Locked&) { return nullptr; }
  /// Takes the memory it needs to start. False: there is none now, to be asked again.
  virtual bool reserve(Locked&) { return true; }
  /// Posts the first requests.
  virtual void start(Locked& locked) = 0;
  /// The request called `token` completed with success; `length` and `tag` for receives.
  virtual void completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) = 0;
  /// The message for the receive called `token` is there, in shared memory. See
  /// GroupMessages::receive_shared.
  virtual void arrived(Locked& locked, uint32_t token, const HostMessage& message);
  /// The request called `token` met a longer message than there was room for. Default: fails.
  virtual void truncated(Locked& locked, uint32_t token, uint64_t tag);
  /// A job has run. Not called when the task is over. Default: throws what the job threw.
  virtual void worked(Locked&, Job& job) { job.check(); }
  /// A rank that it needs has left the group. Default: fails.
  virtual void stranded(Locked& locked, const Error& error) { fail(locked, error); }
  /// Its deadline passed. Default: fails it with what it was waiting for.
  virtual void timed_out(Locked& locked);
  /// Called after GroupMessages::stall: goes on if it can, and says whether it did.
  virtual bool stalled(Locked&) { return false; }
  /// It is done: its result or error may be read, and nothing touches its memory any more.
  virtual void published(Locked&) {}
  /// What it reads is there: see awaits_inputs.
  virtual void inputs_arrived(Locked&) {}

 protected:
  // For hooks.

  /// Queues work that needs no lock; `worked` follows. `bytes`: see JobQueue::add.
  void enqueue(Locked& locked, Job& job, size_t bytes);
  /// Whether what it reads is on its way to the host; then `inputs_arrived` follows.
  bool awaits_inputs(Locked& locked);
  /// Its tensors are on a device: what it reads had to be awaited.
  bool is_of_device() const { return inputs_ != nullptr; }
  void set_ready(Locked&, size_t bytes);
  /// Its number among the group's tasks that take turns.
  uint64_t sequence() const { return record_.sequence; }
  /// "...: Timed out after 500 ms, waiting for ...". It says who is late.
  Error timeout_error(Locked& locked);

 private:
  void publish(Locked& locked);

  const std::shared_ptr<Group> group_;
  const std::chrono::milliseconds timeout_;
  TaskHost* host_ = nullptr;            // from when it is submitted
  std::shared_ptr<InputLatch> inputs_;  // null: they are there
  bool is_held_ = false;                // by the latch
  TimePoint submitted_;
  TimePoint finished_;

  std::atomic<bool> done_{false};
  std::atomic<size_t> ready_bytes_{0};
  bool is_over_ = false;
  std::optional<Error> error_;
  std::mutex callback_mutex_;  // guards the next two
  std::function<void()> callback_;
  bool notified_ = false;

  Record record_;
};

}  // namespace q7x2
