// Streams and events. A stream is a thread that does its work in order; an event is complete when
// its stream has come to where it was recorded last.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace fake_cuda {

/// Whether the calling thread runs a function of the program that a stream has called. As with
/// CUDA, it may call nothing of the driver then.
bool in_host_function();
/// Calls `function` as a stream does.
void call_host_function(const std::function<void()>& function);

class Stream {
 public:
  Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// After the work that it has.
  ~Stream();

  void enqueue(std::function<void()> work);
  void synchronize();

 private:
  void run();

  std::mutex mutex_;  // guards the next
  std::deque<std::function<void()>> work_;
  bool is_busy_ = false;
  bool is_ending_ = false;
  std::condition_variable changed_;
  std::thread thread_;  // the last member: it uses the others
};

class Event {
 public:
  /// `stream`: null for the default stream, whose work is complete when it is enqueued.
  void record(Stream* stream);
  bool is_complete() const;

 private:
  struct Marks {
    std::mutex mutex;  // guards the next
    uint64_t recorded = 0;
    uint64_t reached = 0;
  };
  std::shared_ptr<Marks> marks_ = std::make_shared<Marks>();  // streams may outlive the event
};

}  // namespace fake_cuda
