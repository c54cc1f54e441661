// Parking: where threads wait, and how they are woken.
//
// A waiter looks for progress itself (WaitPolicy says how often and for how long) and sleeps on the
// event descriptors of the workers and on a spot of its own. A wake-up signals the spot of every
// sleeping waiter, so no waiter consumes the wake-up of another.
//
// One more thread, the driver, progresses what nobody waits for. It stands by while threads wait,
// and sleeps when the process is idle. The last waiter that leaves hands unfinished work to it.
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

  /// `unfinished`: how many tasks somebody must drive. Throws Error(kTransport).
  explicit Parking(const std::atomic<size_t>& unfinished);
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  /// A thread that waits, from construction to destruction. For one thread.
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
    /// Offers the processor to others. `now`: the time before.
    void yield(WaitPolicy& policy, TimePoint now);

   private:
    void withdraw();

    Parking& parking_;
    std::unique_ptr<WakeFd> spot_;
    bool is_announced_ = false;
  };

  /// How a thread that starts to wait now should do it.
  WaitPolicy policy(TimePoint now, bool by_network) const;
  bool has_waiters() const { return waiters_ > 0; }
  /// Any thread. Wakes every waiter that sleeps.
  void wake_waiters();

  /// Ranks outnumber the processors of this host.
  bool is_crowded() const { return crowded_.load(std::memory_order_relaxed); }
  void set_crowded() { crowded_.store(true, std::memory_order_relaxed); }

  // The driver.

  /// Any thread: a task was submitted or is waited for. The driver sees by it that others look.
  void note_activity() { activity_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t activity() const { return activity_.load(std::memory_order_relaxed); }
  /// The driver will sleep, or not. Work that is submitted after this wakes it.
  void announce_driver(bool sleeps) { driver_sleeps_ = sleeps; }
  int driver_fd() const { return driver_; }
  /// The driver is awake again.
  void driver_is_up();
  /// Any thread. Wakes the driver if it sleeps.
  void wake_driver();
  /// Any thread. Ends the driver's sleep, or its next one.
  void stop_driver() { driver_.signal(); }

 private:
  /// Null if no file can be opened for one.
  std::unique_ptr<WakeFd> take_spot();
  std::unique_ptr<WakeFd> new_spot();
  void return_spot(std::unique_ptr<WakeFd> spot);

  const std::atomic<size_t>& unfinished_;
  std::atomic<int> waiters_{0};
  std::atomic<uint64_t> activity_{0};
  std::atomic<bool> crowded_{false};
  std::atomic<TimePoint> wanted_until_{TimePoint{}};  // the processor, by other processes

  std::atomic<bool> driver_sleeps_{false};
  WakeFd driver_;

  std::atomic<int> num_sleeping_{0};
  std::mutex mutex_;  // guards the next three
  std::vector<const WakeFd*> sleeping_;
  std::vector<std::unique_ptr<WakeFd>> free_spots_;
  size_t num_spots_ = 0;  // free or not; there is room for all of them in the two vectors
};

}  // namespace q7x2
