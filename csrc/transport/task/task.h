// Task: an operation that a group has in progress, a collective or a message.
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

/// Life of a task: created by the caller, passed to `Runtime::submit`, started, progressed by the
/// thread that drives the reactor, over, done. It is over when it has its result or its error. It
/// is done, and reports it, when its last request and its last job have completed too. Until then
/// the network or a thread may use its memory.
class Task : public std::enable_shared_from_this<Task> {
 public:
  Task(std::shared_ptr<Group> group, std::chrono::milliseconds timeout);
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  /// Any thread. Once it returns true, results and `error` may be read.
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  /// Any thread. Number of leading output bytes that are final and may be read already.
  size_t ready_bytes() const noexcept { return ready_bytes_.load(std::memory_order_acquire); }
  /// The error, if the task failed. Valid only once it is done.
  const std::optional<Error>& error() const noexcept { return error_; }
  /// To be called before the task is submitted: it reads its memory only when `inputs` is open.
  void set_inputs(std::shared_ptr<InputLatch> inputs) { inputs_ = std::move(inputs); }
  /// Calls `callback` once, when the task is done, in a thread of the notifier without any lock
  /// held; in the calling thread if the task is done and the runtime has stopped.
  void notify(std::function<void()> callback);

  Group& group() const noexcept { return *group_; }
  const std::shared_ptr<Group>& group_pointer() const noexcept { return group_; }
  TimePoint submitted() const noexcept { return submitted_; }
  /// Valid only once the task is done.
  TimePoint finished() const noexcept { return finished_; }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }

  /// Names the operation in messages: "all_reduce (sequence 12, 4096 bytes of float32, ring)".
  virtual std::string name() const = 0;
  /// Collectives: at most a fixed number run at once per group; the others queue.
  virtual bool takes_turn() const { return false; }
  /// Whether another task repeats the call if this one fails. Then its error is not the call's
  /// error.
  virtual bool is_attempt() const { return false; }
  /// Whether the group can continue if this task fails. True only for a collective whose result
  /// does not decide anything that all ranks must know alike. `waits`: it waits for its turn, and
  /// fails when it begins.
  virtual bool can_fail_alone(bool /*waits*/) const { return false; }
  /// Offload attempts: members of the group from this one on are servers. The call can be made
  /// without them; a server that does not answer ends the group.
  virtual int first_server() const { return std::numeric_limits<int>::max(); }
  /// Whether the flight recorder keeps it: operations that a user calls, and those that prepare
  /// them.
  virtual bool is_recorded() const { return false; }
  /// Adds what is known at submission to the record: the operation, its sizes, its peer.
  virtual void describe(FlightRecord&) const {}
  /// Adds its progress and what it has computed to the record. Called when it is over, and for a
  /// dump.
  virtual void report(FlightRecord&, NameTable&) const {}
  /// What the task waits for, for messages: "messages from rank 1, 3".
  std::string waiting_for() const;

  // For the transport.

  /// What the transport keeps about a task.
  struct Record {
    TimePoint deadline = TimePoint::max();
    TimePoint next_inquiry = TimePoint::max();
    TimePoint warn_at = TimePoint::max();  ///< when to warn that it waits for long
    RequestList requests;
    size_t jobs = 0;                     ///< queued or running
    std::optional<size_t> active_index;  ///< index among the active tasks
    bool is_started = false;
    TimePoint started;
    uint64_t sequence = 0;                    ///< number among the group's tasks that take turns
    TimePoint over_since = TimePoint::max();  ///< since when it is over, but not done
    uint64_t flight = 0;                      ///< id of its record in the flight recorder; 0: none
    uint32_t flight_group = 0;                ///< its group in the flight recorder; 0: not recorded
    bool has_waited = false;                  ///< whether it has waited for its turn
    bool has_moved = false;  ///< whether a message was sent or received since the last housekeeping
    Traffic traffic;
    WaitMeter waits;
  };
  Record& record(Locked&) { return record_; }
  void set_submitted(Locked&, TimePoint now);
  /// Whether it has its result or its error. Then it starts nothing any more.
  bool is_over(Locked&) const { return is_over_; }
  void finish(Locked& locked);
  void fail(Locked& locked, const Error& error);
  /// Runs `step` because of a message from or to `rank`; -1: because of several messages. That ends
  /// a wait, unless a job is queued or running.
  template <typename Step>
  void after_wait(Locked& locked, int rank, const Step& step) {
    if (record_.jobs == 0) record_.waits.woken_by(rank);
    step();
    // A task that is done has already read the clock.
    if (record_.waits.is_ending() && !is_over(locked)) record_.waits.end(Clock::now());
  }
  /// A request or a job has completed. If the task is over and this was the last one, it is done.
  void settle(Locked& locked);

  // Hooks that the transport calls. They must not block.

  /// The task that must be submitted right before this one; null: none.
  virtual std::shared_ptr<Task> prerequisite(Locked&) { return nullptr; }
  /// Takes the memory that it needs to start. Returns false if there is none now; it is asked again
  /// later.
  virtual bool reserve(Locked&) { return true; }
  /// Posts the first requests.
  virtual void start(Locked& locked) = 0;
  /// The request with this `token` completed with success; `length` and `tag` are for receives.
  virtual void completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) = 0;
  /// The message for the receive with this `token` has arrived in shared memory. See
  /// GroupMessages::receive_shared.
  virtual void arrived(Locked& locked, uint32_t token, const HostMessage& message);
  /// The message for the request with this `token` is longer than its buffer. Default: fails.
  virtual void truncated(Locked& locked, uint32_t token, uint64_t tag);
  /// A job has run. Not called if the task is over. Default: rethrows the job's exception.
  virtual void worked(Locked&, Job& job) { job.check(); }
  /// A rank that it needs has left the group. Default: fails.
  virtual void stranded(Locked& locked, const Error& error) { fail(locked, error); }
  /// Its deadline has passed. Default: fails with an error that says what it was waiting for.
  virtual void timed_out(Locked& locked);
  /// Called after GroupMessages::stall: continues if it can, and returns whether it did.
  virtual bool stalled(Locked&) { return false; }
  /// It is done: its result or error may be read, and nothing uses its memory any more.
  virtual void published(Locked&) {}
  /// Its input has arrived: see `awaits_inputs`.
  virtual void inputs_arrived(Locked&) {}

 protected:
  // For hooks.

  /// Queues work that needs no lock; `worked` is called when it has run. `bytes`: see
  /// JobQueue::add.
  void enqueue(Locked& locked, Job& job, size_t bytes);
  /// Whether its input is still on its way to the host. If so, `inputs_arrived` is called later.
  bool awaits_inputs(Locked& locked);
  /// Whether its tensors are on a device, so that its input had to be awaited.
  bool is_of_device() const { return inputs_ != nullptr; }
  void set_ready(Locked& locked, size_t bytes);
  /// Its number among the group's tasks that take turns.
  uint64_t sequence() const { return record_.sequence; }
  /// "...: Timed out after 500 ms, waiting for ...". The message names the ranks that are late.
  Error timeout_error(Locked& locked);

 private:
  void publish(Locked& locked);

  const std::shared_ptr<Group> group_;
  const std::chrono::milliseconds timeout_;
  TaskHost* host_ = nullptr;            // set when it is done
  std::shared_ptr<InputLatch> inputs_;  // null: they are available
  bool is_held_ = false;                // whether `inputs_` holds it back
  TimePoint submitted_;
  TimePoint finished_;

  std::atomic<bool> done_{false};
  std::atomic<size_t> ready_bytes_{0};
  bool is_over_ = false;
  std::optional<Error> error_;
  std::mutex callback_mutex_;  // guards the next two members
  std::function<void()> callback_;
  bool notified_ = false;

  Record record_;
};

}  // namespace q7x2
