// DeviceWorker: who does the jobs of ops whose elements are on a device.
#pragma once

#include <cstddef>
#include <memory>

namespace q7x2 {

class OpJob;
class Task;

class DeviceWorker {
 public:
  virtual ~DeviceWorker() = default;

  // Of jobs of `count` elements. Without the lock.

  /// Throws Error(kMismatch) if a message that it reads makes no sense.
  virtual void check(const OpJob&, size_t /*count*/) const {}
  /// Enqueues what the job does. Returns the length of the message that it makes, if any. If it
  /// throws, the device may do a part of that.
  virtual size_t enqueue(const OpJob& job, size_t count) = 0;
  /// The job is completed when the stream has done what was enqueued.
  virtual void complete_later(OpJob& job, const std::shared_ptr<Task>& task) = 0;
};

}  // namespace q7x2
