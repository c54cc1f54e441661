// Engine: owns the process's one UCP worker and drives it. All groups share it.
//
// One lock guards the worker, the groups' state and the tasks; whoever holds it may progress. A
// thread that waits for a task progresses inline, so the latency path has no hand-over. The
// engine's own thread drives tasks nobody waits for, and sleeps otherwise: armed on the worker's
// event descriptor when the process is idle, on a timer while other threads do the work. Callbacks
// of tasks run on threads of the notifier, without the lock, because they may run anybody's code.
//
// When a peer has died (PeerTable), every group it belongs to fails, and tells its other ranks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "transport/card.h"
#include "transport/control.h"
#include "transport/notifier.h"
#include "transport/parking.h"
#include "transport/peer_table.h"
#include "transport/reactor.h"
#include "transport/scratch_pool.h"
#include "transport/task.h"

namespace q7x2 {

class Engine {
 public:
  /// The process's engine; made on first use, gone when its last user is.
  static std::shared_ptr<Engine> instance();
  /// How the host program's own locks and interrupts are respected.
  struct Hooks {
    /// Called about every 50 ms by threads that wait, without a lock; may throw to stop the wait.
    std::function<void()> check_interrupt;
    /// Runs its argument, which joins threads, without a lock that callbacks may need (the GIL).
    std::function<void(const std::function<void()>&)> run_unlocked;
  };
  static void set_hooks(Hooks hooks);
  /// For waits outside of the engine: calls the hook, if there is one. May throw.
  static void check_interrupt();
  /// Leaves every group in good order and stops the engine, for the end of the process. Tasks get a
  /// second to complete first, and callbacks five to return. From then on no thread but this one
  /// returns from a call; `others_run`: there are some that could be on their way out of one.
  static void shutdown_instance(bool others_run = false);

  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts `task`. `caller_waits`: the caller will `wait` for it at once, so the engine's thread
  /// need not be woken.
  void submit(const std::shared_ptr<Task>& task, bool caller_waits);
  static constexpr size_t kAll = ~size_t{0};
  /// Waits until `task` is done, or the first `bytes` of its output are ready, progressing it.
  /// False: `deadline` passed first.
  bool wait(const Task& task, TimePoint deadline, size_t bytes = kAll);

  /// This process's identity, random.
  uint64_t process() const { return process_; }
  /// Names of UCX's transports that this process may use.
  std::vector<std::string> transports() const { return reactor_.transports(); }
  /// What the user should know of how UCX was opened; once.
  std::vector<std::string> take_warnings();
  /// Interfaces beside the shared network.
  const std::vector<Nic>& nics_beside() const { return nics_.beside; }
  /// For hooks of tasks.
  ScratchPool& scratch() { return scratch_; }
  /// See ReactorLock::held.
  Locked& held() { return reactor_.lock().held(); }
  /// True in a child made by fork, where nothing here may be touched.
  bool forked() const { return home_.is_elsewhere(); }
  /// To be called first by whatever a user can call: throws Error(kAborted) in a forked child, and
  /// does not return to a thread that the end of the process has left behind.
  void enter() const;
  /// Any thread: runs `callback` on a thread of the notifier. False: the engine has stopped, and
  /// the caller keeps it.
  bool notify(std::function<void()>&& callback) { return notifier_.post(std::move(callback)); }

 private:
  friend class Group;
  friend class Task;

  Engine();

  bool progress(Locked& locked);
  void drain(Locked& locked);
  void housekeeping(Locked& locked, TimePoint now);
  void handle(Locked& locked, const Control& control);
  void handle_guarded(Locked& locked, const Control& control);
  void activate(Locked& locked, const std::shared_ptr<Task>& task);
  void retire(Locked& locked, Task& task);
  /// Runs a step of the task. What it throws, for example because there is no memory, fails the
  /// task and its group, since the other ranks would wait for what this one does not do.
  template <typename Step>
  void guarded(Locked& locked, Task& task, const Step& step);
  void cancel_receives(Locked& locked, Task& task);
  /// The groups of a peer that died fail.
  void peer_died(Locked& locked, Peer& peer);
  void send_control(Locked& locked, Peer& peer, const Control& control);
  /// Wakes the peer's process, which sleeps while a message for it lies in shared memory.
  void send_wake(Locked& locked, Peer& peer);
  /// Arms the worker and lets others know that they must wake this process. False: there is
  /// something to do.
  bool prepare_sleep(Locked& locked);
  void awake(Locked& locked);
  int register_group(Locked& locked, Group& group);
  void unregister_group(Locked& locked, Group& group);
  /// Whether the group's shared memory must be looked at.
  void update_sharing(Locked& locked, Group& group);
  /// A group's cards are there: control messages that came early are handled.
  void group_ready(Locked& locked);

  void run();  // the engine's thread
  void stop();
  void rest(TimePoint tasks_until, TimePoint callbacks_until);

  static ucs_status_t on_control(void* arg, const void* header, size_t header_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t on_wake(void* arg, const void* header, size_t header_length, void* data,
                              size_t length, const ucp_am_recv_param_t* param);

  const HomeProcess home_;
  const uint64_t process_;
  const NicRoles nics_;
  Reactor reactor_;
  PeerTable peers_{reactor_, [this](Locked& locked, Peer& peer) { peer_died(locked, peer); }};

  std::vector<Control> controls_;
  bool lost_control_ = false;            // there was no memory for one
  std::vector<Control> early_controls_;  // for groups whose cards are still being exchanged
  std::vector<std::shared_ptr<Task>> active_;
  std::vector<Group*> groups_;  // by slot
  int next_slot_ = 0;
  std::vector<Group*> sharing_;  // groups that run collectives through shared memory
  bool asleep_ = false;
  std::atomic<size_t> unfinished_{0};  // active tasks that are not done
  TimePoint next_housekeeping_{};

  Parking parking_{unfinished_};
  std::atomic<bool> stop_{false};
  std::thread thread_;

  Notifier notifier_;

  ScratchPool scratch_;
};

}  // namespace q7x2
