// CompletionQueue: what devices have completed, such as copies and kernels, on its way to the
// tasks.
//
// A stream tells of it in a thread of its driver, in which neither UCX nor the device may be called
// and nothing may wait for long. So that thread only adds to this queue and wakes those who drive
// the reactor. They tell the tasks, with the reactor's lock.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "device/accelerators.h"
#include "transport/ucx/locked.h"

namespace q7x2 {

class CompletionQueue;
class Parking;

/// Something that a device completes.
class Completion {
 public:
  explicit Completion(std::shared_ptr<CompletionQueue> queue) : queue_(std::move(queue)) {}
  virtual ~Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  /// Adds `completion` to its queue once `stream` has done all that came before. Throws
  /// Error(kTransport) if the device refuses; `completion` is gone then.
  static void post_after(const StreamCalls& calls, void* stream,
                         std::unique_ptr<Completion> completion);

 protected:
  /// In a thread that drives the reactor.
  virtual void deliver(Locked& locked) = 0;

 private:
  friend class CompletionQueue;

  std::shared_ptr<CompletionQueue> queue_;
  std::unique_ptr<Completion> next_;
};

class CompletionQueue {
 public:
  explicit CompletionQueue(Parking& parking) : parking_(&parking) {}
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  /// Any thread. Takes no lock that is held during a call of UCX or of a device.
  static void post(std::unique_ptr<Completion> completion) noexcept;
  /// Any thread. Who goes to sleep says so first, and then asks.
  bool is_empty() const { return is_empty_; }
  /// Tells the tasks, in the order of `post`. False: there was nothing.
  bool deliver(Locked& locked);
  /// Nobody drives any more: drops what is there, and what comes.
  void close();

 private:
  std::unique_ptr<Completion> take();

  std::atomic<bool> is_empty_{true};
  std::mutex mutex_;  // guards all below
  Parking* parking_;  // null: closed
  std::unique_ptr<Completion> first_;
  Completion* last_ = nullptr;
};

}  // namespace q7x2
