// Runtime: the transport of one process, from its first use to its end.
//
// It owns what the groups share, and decides about life and death: one runtime at a time, none in
// a forked child, an end in good order.
//
//   Runtime   one at a time; fork, exit, the user's own locks and interrupts
//   Driver    drives what follows, in threads that wait and in one of its own
//   Parking   where threads sleep, and how they are woken
//   JobQueue  arithmetic that waits for a thread; its lanes
//   CompletionQueue  what devices have completed
//   Reactor   UCX's workers, requests, completions; its lock covers all below
//   QueueWatch  whether shared memory still brings messages to this process
//   Envelopes, PeerTable, ControlPlane, GroupTable, AssemblyTable, TaskTable
//   FlightLog records what tasks do; DumpWriter writes it to files, in a thread of its own
//   Notifier  runs callbacks of tasks, which may be anybody's code, without the lock
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "transport/bootstrap/assembly_table.h"
#include "transport/group/group_table.h"
#include "transport/net/nics.h"
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
  /// The process's runtime; made on first use, gone when its last user is. Another one takes over
  /// when the queue of shared memory is blocked; groups that have the former one keep it.
  static std::shared_ptr<Runtime> instance();
  /// The newest if there is one; else null.
  static std::shared_ptr<Runtime> existing();
  /// How the host program's own locks and interrupts are respected.
  struct Hooks {
    /// Called about every 50 ms by threads that wait, without a lock; may throw to stop the wait.
    std::function<void()> check_interrupt;
    /// Runs its argument, which waits for threads, without a lock that callbacks may need (the
    /// GIL).
    std::function<void(const std::function<void()>&)> run_unlocked;
  };
  static void set_hooks(Hooks hooks);
  /// For waits outside of the runtime: calls the hook, if there is one. May throw.
  static void check_interrupt();
  /// Runs `body` by the hook, if there is one.
  static void run_unlocked(const std::function<void()>& body);
  /// Leaves every group in good order and stops, for the end of the process. Collectives get five
  /// seconds to complete first, other tasks one, and callbacks five to return. From then on no
  /// thread but this one returns from a call; `others_run`: there are some, beside those of
  /// callbacks, that could be on their way out of one.
  static void shutdown_instance(bool others_run = false);

  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Starts `task`. `caller_waits`: the caller will `wait` for it at once, so the driver's thread
  /// need not be woken.
  void submit(const std::shared_ptr<Task>& task, bool caller_waits);
  static constexpr size_t kAll = ~size_t{0};
  /// Waits until `task` is done, or the first `bytes` of its output are ready, progressing it.
  /// False: `deadline` passed first.
  bool wait(const Task& task, TimePoint deadline, size_t bytes = kAll);
  /// Waits until the collectives that this rank has begun are done, for a rank that will leave: the
  /// others would miss it in them. At most 5 s without progress. `group`: whose; null: of all. Not
  /// waited for: those of a group that has failed, and those that a member has not begun which is
  /// about to leave, too. Returns at once in the driver's thread, which makes progress.
  void finish_collectives(Group* group);
  /// Whether another member would miss `task` if this rank left: a collective that all have begun
  /// or may begin, or a message that its receiver may take.
  static bool is_missed(Locked& locked, Task& task);
  /// What is in progress in `group`. Takes the lock.
  std::vector<std::shared_ptr<Task>> tasks_of(const Group& group);
  /// From here on the flight recorder keeps the group's operations. `job_ranks`: see FlightLog.
  /// Takes the lock.
  void record(const Group& group, const std::vector<uint64_t>& job_ranks);
  /// One round of progress, for threads that wait for something else than a task. Takes the lock.
  void drive();
  /// Has the driver's thread look at tasks that can go on.
  void wake();
  /// Any thread: runs `callback` on a thread of the notifier. False: the runtime has stopped, and
  /// the caller keeps it.
  bool notify(std::function<void()>&& callback) { return notifier_.post(std::move(callback)); }

  /// This process's number, random.
  uint64_t process() const { return identity_.process; }
  /// How others must know this process to talk to it.
  const Identity& identity() const { return identity_; }
  const JobSecret& secret() const { return secret_; }
  /// Names of UCX's transports that this process may use.
  std::vector<std::string> transports() const { return reactor_.transports(); }
  /// What the user should know of how UCX was opened; once.
  std::vector<std::string> take_warnings();
  /// What the flight recorder holds. Any thread.
  FlightSnapshot flight_snapshot(std::string reason);
  /// The address at which other hosts reach this one, for heartbeats.
  const IpAddress& heartbeat_address() const { return nics_.address; }
  /// Other addresses from which connections of this host may come.
  const HostAddresses& sources() const { return nics_.sources; }
  /// Interfaces beside the shared network.
  const std::vector<Nic>& rail_nics() const { return nics_.rails; }
  /// Whether messages from other processes of this host arrive.
  const QueueWatch& queue() const { return queue_; }
  /// True in a child made by fork, where nothing here may be touched.
  bool forked() const { return home_.is_elsewhere(); }
  /// To be called first by whatever a user can call: throws Error(kAborted) in a forked child, and
  /// does not return to a thread that the end of the process has left behind.
  void enter() const;

  // For groups and tasks.

  ReactorLock& lock() { return reactor_.lock(); }
  Reactor& reactor() { return reactor_; }
  PeerTable& peers() { return peers_; }
  ControlPlane& controls() { return controls_; }
  Envelopes& envelopes() { return envelopes_; }
  GroupTable& groups() { return groups_; }
  AssemblyTable& assemblies() { return assemblies_; }
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
  AssemblyTable assemblies_;
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
