// Streams and events of the stand-in accelerator: a stream is a queue with a thread, an event is a
// signal that the thread gives. Nothing but events orders two streams.
//
// A test controls each stream: it can be paused before its next operation, or take longer for each.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include <c10/core/Stream.h>

namespace accelerator {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
inline constexpr c10::DeviceIndex kDevices = 2;
/// Stream 0 is the default one; then come as many of each priority.
inline constexpr c10::StreamId kPoolStreams = 32;
inline constexpr c10::StreamId kStreams = 1 + 2 * kPoolStreams;

/// Set once, by a stream.
class Signal {
 public:
  void set() {
    at_ = std::chrono::steady_clock::now();
    is_set_ = true;
    is_set_.notify_all();
  }
  bool is_set() const { return is_set_; }
  void wait() const { is_set_.wait(false); }
  /// Only once it is set.
  std::chrono::steady_clock::time_point at() const { return at_; }

 private:
  std::atomic<bool> is_set_{false};
  std::chrono::steady_clock::time_point at_;
};

class Queue {
 public:
  /// Runs `work` in the stream's thread, after all that came before.
  void enqueue(std::function<void()> work);
  bool is_idle();
  /// Blocks the host. Throws what an operation threw since the last call.
  void synchronize();

  void pause();
  void resume();
  /// A paused stream does so many more operations.
  void step(size_t operations);
  /// Each operation takes so much longer.
  void slow_down(std::chrono::duration<double> by) { extra_ = by.count(); }
  /// What is_capturing says of it.
  std::atomic<bool> is_capturing{false};

 private:
  void run();

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  uint64_t enqueued_ = 0;
  uint64_t done_ = 0;
  bool is_started_ = false;
  bool is_paused_ = false;
  size_t steps_ = 0;  // that it does all the same
  std::exception_ptr error_;
  std::atomic<double> extra_{0};
};

Queue& queue_of(c10::DeviceIndex device, c10::StreamId stream);
inline Queue& queue_of(const c10::Stream& stream) {
  return queue_of(stream.device_index(), stream.id());
}
c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id);
inline bool is_high_priority(const c10::Stream& stream) {
  return stream.id() > kPoolStreams;
}
void synchronize_device(c10::DeviceIndex device);
/// How often a thread of the host has waited for a stream so far, in this process.
uint64_t host_waits();

// Of the calling thread.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
void set_current_stream(const c10::Stream& stream);
/// Takes turns.
c10::Stream stream_from_pool(c10::DeviceIndex device, bool is_high_priority);

/// From a stream, now: it gives the signal when it comes to it.
std::shared_ptr<Signal> record(Queue& queue);
/// What comes to `queue` from now on waits for the signal.
void block(Queue& queue, std::shared_ptr<Signal> signal);

}  // namespace accelerator
