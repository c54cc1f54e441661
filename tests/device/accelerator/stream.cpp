#include "stream.h"

#include <thread>
#include <utility>

#include <c10/util/Exception.h>

namespace accelerator {
namespace {

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::array<c10::StreamId, kDevices> streams_of_thread{};

std::atomic<uint64_t> taken[kDevices][2];
std::atomic<uint64_t> waits{0};

c10::DeviceIndex checked(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "the stand-in accelerator has ", int{kDevices},
              " devices, got index ", int{device});
  return device;
}

}  // namespace

// Detached, like the queues: both live until the process ends, whatever a stream waits for then.
void Queue::enqueue(std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work_.push_back(std::move(work));
  ++enqueued_;
  if (!is_started_) {
    is_started_ = true;
    std::thread([this] { run(); }).detach();
  }
  changed_.notify_all();
}

void Queue::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !work_.empty() && (!is_paused_ || steps_ > 0); });
    if (is_paused_) --steps_;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      if (const double extra = extra_; extra > 0) {
        std::this_thread::sleep_for(std::chrono::duration<double>(extra));
      }
      work();
      work = nullptr;
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    ++done_;
    if (error && !error_) error_ = error;
    changed_.notify_all();
  }
}

bool Queue::is_idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_ == enqueued_;
}

void Queue::synchronize() {
  ++waits;
  std::unique_lock<std::mutex> lock(mutex_);
  // What is enqueued while this waits is not waited for.
  changed_.wait(lock, [this, last = enqueued_] { return done_ >= last; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Queue::pause() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_paused_ = true;
}

void Queue::resume() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_paused_ = false;
  steps_ = 0;
  changed_.notify_all();
}

void Queue::step(size_t operations) {
  const std::lock_guard<std::mutex> lock(mutex_);
  steps_ += operations;
  changed_.notify_all();
}

Queue& queue_of(c10::DeviceIndex device, c10::StreamId stream) {
  static auto* const queues = new std::array<std::array<Queue, kStreams>, kDevices>();
  TORCH_CHECK(stream >= 0 && stream < kStreams, "the stand-in accelerator has no stream ", stream);
  return (*queues)[static_cast<size_t>(checked(device))][static_cast<size_t>(stream)];
}

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}

uint64_t host_waits() {
  return waits;
}

void synchronize_device(c10::DeviceIndex device) {
  for (c10::StreamId id = 0; id < kStreams; ++id) {
    Queue& queue = queue_of(device, id);
    if (!queue.is_idle()) queue.synchronize();
  }
}

c10::DeviceIndex current_device() {
  return device_of_thread;
}

void set_current_device(c10::DeviceIndex device) {
  device_of_thread = checked(device);
}

c10::Stream current_stream(c10::DeviceIndex device) {
  if (device < 0) device = device_of_thread;
  return stream_of(device, streams_of_thread[static_cast<size_t>(checked(device))]);
}

void set_current_stream(const c10::Stream& stream) {
  streams_of_thread[static_cast<size_t>(checked(stream.device_index()))] = stream.id();
}

c10::Stream stream_from_pool(c10::DeviceIndex device, bool is_high_priority) {
  if (device < 0) device = device_of_thread;
  const uint64_t turn = taken[checked(device)][is_high_priority ? 1 : 0]++ % kPoolStreams;
  return stream_of(device,
                   1 + (is_high_priority ? kPoolStreams : 0) + static_cast<c10::StreamId>(turn));
}

std::shared_ptr<Signal> record(Queue& queue) {
  auto signal = std::make_shared<Signal>();
  queue.enqueue([signal] { signal->set(); });
  return signal;
}

void block(Queue& queue, std::shared_ptr<Signal> signal) {
  queue.enqueue([signal = std::move(signal)] { signal->wait(); });
}

}  // namespace accelerator
