// Locked: proof, as a type, that the calling thread holds the reactor's lock.
//
// The lock covers UCX and the state of groups, tasks and peers. A function that needs it takes a
// `Locked&`, and reaches that state through it: `locked.peers()` exists only while the lock is
// held.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/process.h"

namespace q7x2 {

class ControlPlane;
class FlightLog;
class GroupHost;
class GroupTable;
class Locked;
class PeerTable;
class Reactor;
class TaskHost;
class TaskTable;

/// The objects that a lock guards.
struct LockedState {
  Reactor* reactor = nullptr;
  PeerTable* peers = nullptr;
  ControlPlane* controls = nullptr;
  GroupTable* groups = nullptr;
  TaskTable* tasks = nullptr;
  FlightLog* flights = nullptr;
  TaskHost* task_host = nullptr;
  GroupHost* group_host = nullptr;
};

/// The lock. A forked child cannot take it, because another thread may have held it during the
/// fork.
class ReactorLock {
 public:
  ReactorLock() = default;
  ReactorLock(const ReactorLock&) = delete;
  ReactorLock& operator=(const ReactorLock&) = delete;

  /// To be called before the lock is first taken: the objects that it guards.
  void cover(const LockedState& state) { state_ = state; }
  /// Returns true if the caller now holds the lock; it must then construct a `Locked` with
  /// std::adopt_lock. Also returns false while another thread waits for the lock, because that
  /// thread comes first.
  bool try_lock() { return !is_wanted() && mutex_.try_lock(); }
  /// Whether a thread waits for it.
  bool is_wanted() const { return num_waiting_.load(std::memory_order_relaxed) > 0; }
  /// For a thread that takes the lock repeatedly: lets the waiting threads take it first. Otherwise
  /// it would take the lock again before one of them wakes up.
  void let_others_first() const;
  /// The proof of the current holder: for UCX's callbacks, which run in a thread that holds the
  /// lock. Throws Error(kInternal) if no thread holds it.
  Locked& held() const;

 private:
  friend class Locked;

  const ForkGuard home_;
  std::mutex mutex_;
  std::atomic<int> num_waiting_{0};
  Locked* holder_ = nullptr;
  LockedState state_;
};

class Locked {
 public:
  /// Throws Error(kAborted) in a forked child.
  explicit Locked(ReactorLock& lock);
  Locked(ReactorLock& lock, std::adopt_lock_t);
  /// Releases the lock, then destroys what was given to `drop_later`.
  ~Locked();
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  Reactor& reactor() const { return *lock_.state_.reactor; }
  PeerTable& peers() const { return *lock_.state_.peers; }
  ControlPlane& controls() const { return *lock_.state_.controls; }
  GroupTable& groups() const { return *lock_.state_.groups; }
  TaskTable& tasks() const { return *lock_.state_.tasks; }
  FlightLog& flights() const { return *lock_.state_.flights; }
  /// What the process does for tasks, and for groups.
  TaskHost& task_host() const { return *lock_.state_.task_host; }
  GroupHost& group_host() const { return *lock_.state_.group_host; }

  /// Destroying a task frees memory of the user, which may need the GIL, so the lock must not be
  /// held. If this throws std::bad_alloc, the caller still has the object.
  template <typename T>
  void drop_later(std::shared_ptr<T>&& object) {
    dropped_.emplace_back();
    dropped_.back() = std::move(object);
  }

 private:
  ReactorLock& lock_;
  std::vector<std::shared_ptr<const void>> dropped_;
};

}  // namespace q7x2
