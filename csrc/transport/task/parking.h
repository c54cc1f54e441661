// Parking: where threads wait, and how they are woken.
//
// A waiter makes progress itself (WaitPolicy says how often and for how long). It sleeps on the
// event descriptors of the workers and on an eventfd of its own, its spot. A wake-up signals the
// spot of every sleeping waiter, so no waiter consumes the wake-up of another.
//
// One more thread, the driver, makes progress for tasks that no thread waits for. It stands by
// while threads wait, and sleeps when the process is idle. The last waiter that leaves hands
// unfinished work to it.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/owned_fd.h"
#include "transport/task/wait_policy.h"

namespace q7x2 {

/// An eventfd that ends a `poll`.
class WakeFd {
 public:
  /// Throws Error(kTransport) if the process can open no more files.
  WakeFd();
  void signal() const;
  void clear() const;
  operator int() const { return fd_; }

 private:
  OwnedFd fd_;
};

class Parking {
 public:
  using TimePoint = WaitPolicy::TimePoint;

  /// `unfinished`: how many tasks need a thread that drives them. Throws Error(kTransport).
  explicit Parking(const std::atomic<size_t>& unfinished);
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  /// A waiting thread, from construction to destruction. Used by this one thread only.
  class Waiter {
   public:
    explicit Waiter(Parking& parking);
    ~Waiter();
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    /// From now on a wake-up ends the next `sleep`.
    void announce();
    /// After `announce`: sleeps until an event, a wake-up, or the timeout. Returns true if it was
    /// woken.
    bool sleep(std::vector<pollfd> events, std::chrono::milliseconds timeout);
    /// Offers the processor to other threads. `now`: the time before the call.
    void yield(WaitPolicy& policy, TimePoint now);

   private:
    void withdraw();

    Parking& parking_;
    std::unique_ptr<WakeFd> spot_;
    bool is_announced_ = false;
  };

  /// How a thread that starts to wait now should wait.
  WaitPolicy policy(TimePoint now, bool by_network) const;
  bool has_waiters() const { return waiters_ > 0; }
  /// Any thread. Wakes every waiter that sleeps.
  void wake_waiters();

  /// Ranks outnumber the processors of this host.
  bool is_crowded() const { return crowded_.load(std::memory_order_relaxed); }
  void set_crowded() { crowded_.store(true, std::memory_order_relaxed); }

  // For the driver.

  /// Any thread. A task was submitted or is waited for. The driver learns from it that other
  /// threads make progress.
  void note_activity() { activity_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t activity() const { return activity_.load(std::memory_order_relaxed); }
  /// Says whether the driver will sleep. If so, work that is submitted later wakes it.
  void announce_driver(bool sleeps) { driver_sleeps_ = sleeps; }
  int driver_fd() const { return driver_; }
  /// The driver is awake again.
  void driver_is_up();
  /// Any thread. Wakes the driver if it sleeps.
  void wake_driver();
  /// Any thread. Ends the driver's sleep, or its next one.
  void stop_driver() { driver_.signal(); }

 private:
  /// Returns null if the process can open no more files.
  std::unique_ptr<WakeFd> take_spot();
  std::unique_ptr<WakeFd> new_spot();
  void return_spot(std::unique_ptr<WakeFd> spot);

  const std::atomic<size_t>& unfinished_;
  std::atomic<int> waiters_{0};
  std::atomic<uint64_t> activity_{0};
  std::atomic<bool> crowded_{false};
  std::atomic<TimePoint> wanted_until_{
      TimePoint{}};  // until when other processes want the processor

  std::atomic<bool> driver_sleeps_{false};
  WakeFd driver_;

  std::atomic<int> num_sleeping_{0};
  std::mutex mutex_;  // guards the next three members
  std::vector<const WakeFd*> sleeping_;
  std::vector<std::unique_ptr<WakeFd>> free_spots_;
  size_t num_spots_ = 0;  // free or in use; the two vectors have reserved room for all of them
};

}  // namespace q7x2
