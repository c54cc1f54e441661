// Driver: drives the reactor, and everything that depends on it, in whichever thread has the time.
//
// A thread that waits for a task progresses inline, and runs the jobs of the task's group between
// two looks, so the latency path has no hand-over. The driver's own thread progresses what nobody
// waits for, and sleeps otherwise: armed on the workers' event descriptors when the process is
// idle, on a timer while other threads do the work.
//
// UCX cannot be armed while its queue has a message whose writer has not ended it. A writer that is
// stopped keeps it so for as long as it likes. After a few milliseconds in which nothing else
// happens, threads sleep all the same, and look every millisecond.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "transport/bootstrap/assembly_table.h"
#include "transport/group/group_table.h"
#include "transport/peer/peer_table.h"
#include "transport/peer/queue_watch.h"
#include "transport/run/job_queue.h"
#include "transport/run/task_table.h"
#include "transport/task/completion_queue.h"
#include "transport/task/parking.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class Driver {
 public:
  Driver(Reactor& reactor, QueueWatch& queue, PeerTable& peers, GroupTable& groups,
         AssemblyTable& assemblies, TaskTable& tasks, JobQueue& jobs, CompletionQueue& completions,
         Parking& parking)
      : reactor_(reactor),
        queue_(queue),
        peers_(peers),
        groups_(groups),
        assemblies_(assemblies),
        tasks_(tasks),
        jobs_(jobs),
        completions_(completions),
        parking_(parking) {}
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Starts the thread. Throws Error(kTransport).
  void start();
  /// Stops and joins it; nothing if it has stopped already. False: it had.
  bool stop();
  bool is_stopped() const { return stop_; }
  bool is_current_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  /// Waits until `task` is done, or the first `bytes` of its output are ready, progressing it.
  /// `interrupt`: called about every 50 ms without the lock; may throw. False: `deadline` passed
  /// first.
  bool wait(const Task& task, TimePoint deadline, size_t bytes,
            const std::function<void()>& interrupt);

  /// One round: messages, completions, control messages. True: something happened.
  bool progress(Locked& locked);
  /// The same, and housekeeping if it is due.
  void drive(Locked& locked);

 private:
  struct Sleep {
    std::vector<pollfd> events;            ///< what ends it
    std::chrono::milliseconds duration{};  ///< negative: until an event
  };

  void run();
  void take_turn();
  /// Fails all groups because of an exception that is being handled.
  void fail(Locked& locked, const std::exception& exception) noexcept;
  /// One look of the thread. Returns how to sleep; without events: for others to look.
  Sleep look();
  /// One look of a thread that waits in `wait` until `satisfied` returns true. Sets `now`. Returns
  /// how to sleep; nothing: the thread goes on looking.
  template <typename Satisfied>
  std::optional<Sleep> look(Locked& locked, WaitPolicy& policy, Parking::Waiter& waiter,
                            const Satisfied& satisfied, TimePoint& now);
  /// Every few milliseconds, and when a thread wakes up: deadlines, deaths, disagreements.
  void housekeep(Locked& locked, TimePoint now);
  /// How long a thread may sleep before it must do that again; at most `at_most`.
  std::chrono::milliseconds nap(Locked& locked, TimePoint now,
                                std::chrono::milliseconds at_most) const;
  /// The threads that wait have not housekept for long, for example because a callback of the host
  /// program keeps them.
  bool is_overdue() const;
  /// Arms the workers, and lets the other ranks of this host know that they must wake this process.
  /// Nothing: there is something to do.
  std::optional<Sleep> prepare_sleep(Locked& locked, TimePoint now,
                                     std::chrono::milliseconds at_most);

  Reactor& reactor_;
  QueueWatch& queue_;
  PeerTable& peers_;
  GroupTable& groups_;
  AssemblyTable& assemblies_;
  TaskTable& tasks_;
  JobQueue& jobs_;
  CompletionQueue& completions_;
  Parking& parking_;

  std::atomic<TimePoint> next_housekeeping_{TimePoint{}};
  std::atomic<bool> is_hasty_{false};  // a thread has slept: what woke it may be for housekeeping
  std::atomic<bool> stop_{false};
  TimePoint busy_since_ = TimePoint::max();  // UCX cannot be armed, and nothing happens
  std::exception_ptr failure_;  // that not all groups have been told, under the reactor's lock
  uint64_t seen_activity_ = 0;  // by the thread
  TimePoint spin_until_{};      // the thread
  std::thread thread_;
};

}  // namespace q7x2
