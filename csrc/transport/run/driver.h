// Driver: drives the reactor, and everything that depends on it, in any thread that has the time.
//
// A thread that waits for a task makes progress inline, and runs the jobs of the task's group
// between two polls, so the latency path has no hand-over to another thread. The driver's own
// thread makes progress for tasks that no thread waits for. Otherwise it sleeps: armed on the
// workers' event descriptors when the process is idle, on a timer while other threads do the work.
//
// UCX cannot be armed while its queue has a message that is only half written. A writer that is
// stopped can keep it in this state without limit. If nothing else happens for a few milliseconds,
// threads sleep all the same, and poll every millisecond.
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

#include "transport/group/group_table.h"
#include "transport/peer/bootstrap_table.h"
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
         BootstrapTable& bootstraps, TaskTable& tasks, JobQueue& jobs, CompletionQueue& completions,
         Parking& parking)
      : reactor_(reactor),
        queue_(queue),
        peers_(peers),
        groups_(groups),
        bootstraps_(bootstraps),
        tasks_(tasks),
        jobs_(jobs),
        completions_(completions),
        parking_(parking) {}
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Starts the thread. Throws Error(kTransport).
  void start();
  /// Stops the thread and joins it. Does nothing and returns false if it has already stopped.
  bool stop();
  bool is_stopped() const { return stop_; }
  bool is_current_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  /// Makes progress until `task` is done, or the first `bytes` bytes of its output are ready.
  /// `interrupt` is called about every 50 ms without the lock; it may throw. Returns false if
  /// `deadline` passed first.
  bool wait(const Task& task, TimePoint deadline, size_t bytes,
            const std::function<void()>& interrupt);

  /// One round: messages, completions, control messages. Returns true if anything happened.
  bool progress(Locked& locked);
  /// One round of progress, and housekeeping if it is due.
  void drive(Locked& locked);

 private:
  struct Sleep {
    std::vector<pollfd> events;            ///< which events end the sleep
    std::chrono::milliseconds duration{};  ///< negative: until an event
  };

  void run();
  void take_turn();
  /// Fails all groups because of the exception that is being handled.
  void fail(Locked& locked, const std::exception& exception) noexcept;
  /// One round of the driver's thread. Returns how it shall sleep; `events` is empty if other
  /// threads poll.
  Sleep look();
  /// One look of a thread that waits in `wait` until `satisfied` returns true. Sets `now`. Returns
  /// how to sleep; nothing: the thread goes on looking.
  template <typename Satisfied>
  std::optional<Sleep> look(Locked& locked, WaitPolicy& policy, Parking::Waiter& waiter,
                            const Satisfied& satisfied, TimePoint& now);
  /// Checks deadlines, deaths and disagreements. Called every few milliseconds and when a thread
  /// wakes up.
  void housekeep(Locked& locked, TimePoint now);
  /// How long a thread may sleep before the next housekeeping is due; at most `at_most`.
  std::chrono::milliseconds nap(Locked& locked, TimePoint now,
                                std::chrono::milliseconds at_most) const;
  /// Whether housekeeping is long overdue, for example because a callback of the host program keeps
  /// the waiting threads busy.
  bool is_overdue() const;
  /// Arms the workers, and tells the other ranks of this host that they must wake this process.
  /// Returns nothing if there is work to do instead of sleeping.
  std::optional<Sleep> prepare_sleep(Locked& locked, TimePoint now,
                                     std::chrono::milliseconds at_most);

  Reactor& reactor_;
  QueueWatch& queue_;
  PeerTable& peers_;
  GroupTable& groups_;
  BootstrapTable& bootstraps_;
  TaskTable& tasks_;
  JobQueue& jobs_;
  CompletionQueue& completions_;
  Parking& parking_;

  std::atomic<TimePoint> next_housekeeping_{TimePoint{}};
  std::atomic<bool> is_hasty_{false};  // housekeep at once: an event has woken a thread
  std::atomic<bool> stop_{false};
  TimePoint busy_since_ = TimePoint::max();  // since when UCX cannot be armed and nothing happens
  std::exception_ptr failure_;  // not yet reported to all groups; under the reactor's lock
  uint64_t seen_activity_ = 0;  // Parking's; used only by the driver's thread
  TimePoint spin_until_{};      // used only by the driver's thread
  std::thread thread_;
};

}  // namespace q7x2
