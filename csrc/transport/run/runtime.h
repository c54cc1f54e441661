// Runtime: the transport of one process, from its first use to its end.
//
// It owns what the groups share, and it decides when this starts and ends: one runtime at a time,
// none in a forked child, an orderly end.
//
//   Runtime   one at a time; fork, exit, the user's own locks and interrupts
//   Driver    makes progress on the following, in threads that wait and in one of its own
//   Parking   where threads sleep, and how they are woken
//   JobQueue  arithmetic that waits for a thread; its lanes
//   CompletionQueue  what devices have completed
//   Reactor   UCX's workers, requests, completions; its lock covers everything below
//   QueueWatch  whether shared memory still brings messages to this process
//   Envelopes, PeerTable, ControlPlane, GroupTable, BootstrapTable, TaskTable
//   FlightLog records what tasks do; DumpWriter writes it to files, in a thread of its own
//   Notifier  runs callbacks of tasks, which are code of the host program, without the lock
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "transport/group/group_table.h"
#include "transport/net/nics.h"
#include "transport/peer/bootstrap_table.h"
#include "transport/peer/control_plane.h"
#include "transport/peer/peer_table.h"
#include "transport/peer/queue_watch.h"
#include "transport/run/driver.h"
#include "transport/run/flight_log.h"
#include "transport/run/job_queue.h"
#include "transport/run/notifier.h"
#include "transport/run/scratch_pool.h"
#include "transport/run/services.h"
#include "transport/run/task_table.h"
#include "transport/task/completion_queue.h"
#include "transport/task/parking.h"
#include "transport/trust/envelope.h"
#include "transport/trust/job_secret.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class Runtime {
 public:
  /// The process's runtime. It is created on first use and destroyed with its last user. A new one
  /// takes over when the queue of shared memory is blocked; groups of the old one keep it.
  static std::shared_ptr<Runtime> instance();
  /// The newest runtime; null if there is none.
  static std::shared_ptr<Runtime> existing();
  /// How the host program's own locks and interrupts are respected.
  struct Hooks {
    /// Called without a lock, about every 50 ms, by threads that wait; may throw to stop the wait.
    std::function<void()> check_interrupt;
    /// Runs its argument, which waits for threads, without the lock that callbacks may need (the
    /// GIL).
    std::function<void(const std::function<void()>&)> run_unlocked;
  };
  static void set_hooks(Hooks hooks);
  /// For waits outside the runtime: calls the hook, if there is one. May throw.
  static void check_interrupt();
  /// Runs `body` through the hook, if there is one.
  static void run_unlocked(const std::function<void()>& body);
  /// For the end of the process: leaves every group in good order and stops. First it waits for
  /// collectives to complete (at most five seconds), for other tasks (one second), and for
  /// callbacks to return (five seconds). From then on only this thread returns from a call.
  /// `others_run`: there are other threads, besides those of callbacks, that may be leaving a call.
  static void shutdown_instance(bool others_run = false);

  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Starts `task`. `caller_waits`: the caller will call `wait` for it at once, so the driver's
  /// thread need not be woken.
  void submit(const std::shared_ptr<Task>& task, bool caller_waits);
  static constexpr size_t kAll = ~size_t{0};
  /// Makes progress until `task` is done, or the first `bytes` bytes of its output are ready.
  /// Returns false if `deadline` passed first.
  bool wait(const Task& task, TimePoint deadline, size_t bytes = kAll);
  /// For a rank that will leave: waits until the collectives that it has begun are done, because
  /// the other ranks need it in them. Gives up after 5 s without progress. `group`: whose
  /// collectives; null: those of all groups. Does not wait for collectives of a failed group, nor
  /// for those that a member has not begun and will not begin because it leaves too. Returns at
  /// once in the driver's thread, because that thread makes the progress.
  void finish_collectives(Group* group);
  /// Whether another member needs this rank for `task`: a collective that all members have begun or
  /// may begin, or a message that its receiver may take.
  static bool is_missed(Locked& locked, Task& task);
  /// The tasks of `group` that are in progress. Takes the lock.
  std::vector<std::shared_ptr<Task>> tasks_of(const Group& group);
  /// From now on the flight recorder keeps the group's operations. `job_ranks`: see FlightLog.
  /// Takes the lock.
  void record(const Group& group, const std::vector<uint64_t>& job_ranks);
  /// One round of progress, for threads that wait for something other than a task. Takes the lock.
  void drive();
  /// Makes the driver's thread check which tasks can continue.
  void wake();
  /// Any thread. Runs `callback` on a thread of the notifier. Returns false if the runtime has
  /// stopped; the caller then keeps the callback.
  bool notify(std::function<void()>&& callback) { return notifier_.post(std::move(callback)); }

  /// The random number of this process.
  uint64_t process() const { return identity_.process; }
  /// What others must know about this process to talk to it.
  const Identity& identity() const { return identity_; }
  const JobSecret& secret() const { return secret_; }
  /// Names of UCX's transports that this process may use.
  std::vector<std::string> transports() const { return reactor_.transports(); }
  /// Warnings for the user about how UCX was opened. Returns them only once.
  std::vector<std::string> take_warnings();
  /// What the flight recorder holds. Any thread.
  FlightSnapshot flight_snapshot(std::string reason);
  /// The address at which other hosts send heartbeats to this one.
  const IpAddress& heartbeat_address() const { return nics_.address; }
  /// Other addresses from which connections of this host may come.
  const HostAddresses& sources() const { return nics_.sources; }
  /// Network interfaces that are used in addition to the shared network.
  const std::vector<Nic>& rail_nics() const { return nics_.rails; }
  /// Whether messages from other processes of this host arrive.
  const QueueWatch& queue() const { return queue_; }
  /// True in a child made by fork, which must not use anything here.
  bool forked() const { return home_.is_elsewhere(); }
  /// Must be called first by every function of the public interface. Throws Error(kAborted) in a
  /// forked child, and does not return to a thread that the end of the process has left behind.
  void enter() const;

  // For groups and tasks.

  ReactorLock& lock() { return reactor_.lock(); }
  Reactor& reactor() { return reactor_; }
  PeerTable& peers() { return peers_; }
  ControlPlane& controls() { return controls_; }
  Envelopes& envelopes() { return envelopes_; }
  GroupTable& groups() { return groups_; }
  BootstrapTable& bootstraps() { return bootstraps_; }
  TaskTable& tasks() { return tasks_; }
  JobQueue& jobs() { return jobs_; }
  const std::shared_ptr<CompletionQueue>& completions() { return completions_; }
  FlightLog& flights() { return flights_; }
  Parking& parking() { return parking_; }
  /// For hooks of tasks.
  ScratchPool& scratch() { return scratch_; }

 private:
  explicit Runtime(const FlightSettings& flights);

  static void destroy(Runtime* runtime);
  static std::vector<std::shared_ptr<Runtime>> living();
  static std::shared_ptr<Runtime> make();
  bool is_usable() const { return !forked() && !driver_.is_stopped() && !queue_.is_blocked(); }
  bool rest(TimePoint tasks_until, TimePoint callbacks_until);
  void stop();

  const ForkGuard home_;
  const JobSecret secret_;
  const Identity identity_;
  FlightLog flights_;
  const NicRoles nics_;
  Reactor reactor_;
  QueueWatch queue_;
  Envelopes envelopes_;
  PeerTable peers_;
  ControlPlane controls_;
  GroupTable groups_;
  BootstrapTable bootstraps_;
  TaskTable tasks_;
  Parking parking_;
  JobQueue jobs_;
  const std::shared_ptr<CompletionQueue> completions_;
  Driver driver_;
  Notifier notifier_;
  Services services_{tasks_, groups_, flights_, jobs_, parking_, notifier_};
  ScratchPool scratch_;
  std::unique_ptr<DumpWriter> dumps_;  // null: nothing is written
};

}  // namespace q7x2
