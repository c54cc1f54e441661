// DeviceWorker: does the work of ops whose elements are on a device. The call's Residence provides
// it (executor/residence/residence.h).
#pragma once

#include <cstddef>
#include <memory>

namespace q7x2 {

class OpJob;
class Task;

class DeviceWorker {
 public:
  virtual ~DeviceWorker() = default;

  // For jobs of `count` elements. Called without the reactor's lock.

  /// Throws Error(kMismatch) if a message that the job reads is malformed.
  virtual void check(const OpJob&, size_t /*count*/) const {}
  /// Enqueues the job's work on the device. Returns the length of the message that it makes, if
  /// any. If it throws, the device may have begun a part of the work.
  virtual size_t enqueue(const OpJob& job, size_t count) = 0;
  /// Completes the job when the stream has done all that was enqueued.
  virtual void complete_later(OpJob& job, const std::shared_ptr<Task>& task) = 0;
};

}  // namespace q7x2
