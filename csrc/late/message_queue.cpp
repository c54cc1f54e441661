#include "late/message_queue.h"

#include <new>
#include <utility>

#include "base/process.h"
#include "transport/run/runtime.h"

namespace q7x2 {

// Aligned because the processor's vector loads read whole cache lines.
Bytes Bytes::make(size_t size) {
  constexpr std::align_val_t kAlignment{64};
  auto* const data = static_cast<std::byte*>(::operator new(size, kAlignment));
  return {.data = {data, [](std::byte* each) { ::operator delete(each, kAlignment); }},
          .size = size};
}

/// A task that is never submitted. Its ready bytes are the number of arrivals. So a thread can wait
/// for the next arrival in the same way as for a part of a result.
class MessageQueue::Signal final : public Task {
 public:
  explicit Signal(std::shared_ptr<Group> group)
      : Task(std::move(group), std::chrono::milliseconds::zero()) {}

  std::string name() const override { return "messages of ranks that may be late"; }
  void start(Locked&) override {}
  void completed(Locked&, uint32_t, size_t, uint64_t) override {}

  void set_arrivals(Locked& locked, size_t count) { set_ready(locked, count); }
};

MessageQueue::MessageQueue(const std::shared_ptr<Group>& group, Reader reader)
    : reader_(reader), signal_(std::make_shared<Signal>(group)) {}

void MessageQueue::put(PeerMessage message) {
  Locked locked(signal_->group().runtime().lock());
  add(locked, [message = std::move(message)] { return message; });
}

void MessageQueue::add(Locked& locked, Arrival arrival) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    arrivals_.push_back(std::move(arrival));
  }
  has_arrivals_.notify_one();
  signal_->set_arrivals(locked, ++added_);
}

bool MessageQueue::wait(TimePoint deadline) {
  if (reader_ == Reader::kDrives) {
    return signal_->group().runtime().wait(*signal_, deadline, taken_ + 1);
  }
  const StayIfEnding stay;
  std::unique_lock<std::mutex> lock(mutex_);
  return has_arrivals_.wait_until(lock, deadline, [&] { return !arrivals_.empty(); });
}

std::optional<PeerMessage> MessageQueue::receive(TimePoint deadline) {
  if (!wait(deadline)) return std::nullopt;
  ++taken_;
  Arrival arrival;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
  }
  return arrival();
}

}  // namespace q7x2
