// CompletionQueue: passes what devices have completed, such as copies and kernels, to the tasks.
//
// A stream reports a completion in a thread of the device's driver. That thread must not call UCX
// or the device, and must not wait for long. It only adds the completion to this queue and wakes
// the threads that drive the reactor. They tell the tasks, under the reactor's lock.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "device/accelerators.h"
#include "transport/ucx/locked.h"

namespace q7x2 {

class CompletionQueue;
class Parking;

/// Work that a device completes.
class Completion {
 public:
  explicit Completion(std::shared_ptr<CompletionQueue> queue) : queue_(std::move(queue)) {}
  virtual ~Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  /// Adds `completion` to its queue once `stream` has done all earlier work. Throws
  /// Error(kTransport) if the device refuses; `completion` is then destroyed.
  static void post_after(const StreamCalls& calls, void* stream,
                         std::unique_ptr<Completion> completion);

 protected:
  /// Called in a thread that drives the reactor.
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

  /// May be called by any thread. Takes no lock that is held during a call of UCX or of a device.
  static void post(std::unique_ptr<Completion> completion) noexcept;
  /// May be called by any thread. A thread that goes to sleep announces it first, and then asks.
  bool is_empty() const { return is_empty_; }
  /// Tells the tasks, in the order of `post`. Returns false if the queue was empty.
  bool deliver(Locked& locked);
  /// To be called when no thread drives the reactor any more: drops all present and later
  /// completions.
  void close();

 private:
  std::unique_ptr<Completion> take();

  std::atomic<bool> is_empty_{true};
  std::mutex mutex_;  // guards all members below
  Parking* parking_;  // null: closed
  std::unique_ptr<Completion> first_;
  Completion* last_ = nullptr;
};

}  // namespace q7x2
