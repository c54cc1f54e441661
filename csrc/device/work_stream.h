// WorkStream: a stream of a device for work that the host starts during a call: copies of messages,
// and kernels.
//
// Nothing on it waits for another stream or for a gate. All enqueued work is ready to run, so calls
// that share it never wait for each other's callers.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "device/accelerators.h"

namespace q7x2 {

class WorkStream {
 public:
  enum class Way { kToDevice, kToHost, kOnDevice };

  virtual ~WorkStream() = default;

  /// Host memory whose copies to and from the device do not block the host. Any thread; may take
  /// long. Throws if there is none.
  virtual std::shared_ptr<std::byte> pinned(size_t bytes) = 0;
  /// Calls `enqueue` while the stream and its device are the calling thread's current ones. Any
  /// thread.
  virtual void with(const std::function<void()>& enqueue) = 0;

  virtual void* handle() const = 0;
  virtual const StreamCalls& calls() const = 0;

  // To be called inside `with`. They throw if the device refuses.

  /// Memory of the device for work that is enqueued before the pointer is released.
  virtual std::shared_ptr<std::byte> scratch(size_t bytes) = 0;
  /// Copies between the device and pinned memory, which must live until the copy is done, or within
  /// the device.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes, Way way) = 0;
};

}  // namespace q7x2
