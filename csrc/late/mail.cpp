#include "late/mail.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "executor/collective/message.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

constexpr uint32_t kHeaderTag = 0;
constexpr uint32_t kPayloadTag = 1;
constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24) * 3650;  // for stopped ranks

}  // namespace

/// A message whose completion is an arrival, unless its queue no longer exists.
class Mail::MailTask final : public MessageTask {
 public:
  MailTask(std::shared_ptr<Group> group, Direction direction, int peer, uint32_t tag,
           const Bytes& data, std::weak_ptr<MessageQueue> queue, MessageQueue::Arrival arrival)
      : MessageTask(std::move(group), direction, peer, tag, data.data.get(), data.size, data.data,
                    kForEver),
        queue_(std::move(queue)),
        arrival_(std::move(arrival)) {}

  void published(Locked& locked) override {
    const std::shared_ptr<MessageQueue> queue = arrival_ ? queue_.lock() : nullptr;
    if (!queue) return;
    queue->add(locked, [self = std::static_pointer_cast<MailTask>(shared_from_this())] {
      self->check();
      return std::exchange(self->arrival_, nullptr)();
    });
  }

  void check() const {
    if (error()) throw Error(*error());
  }

 private:
  const std::weak_ptr<MessageQueue> queue_;
  MessageQueue::Arrival arrival_;
};

std::shared_ptr<Mail> Mail::make(std::shared_ptr<Group> group, size_t width,
                                 std::shared_ptr<MessageQueue> queue, size_t most_sends) {
  std::shared_ptr<Mail> made(new Mail(std::move(group), width, std::move(queue), most_sends));
  for (const int peer : made->peers_) made->await_header(peer);
  return made;
}

Mail::Mail(std::shared_ptr<Group> group, size_t width, std::shared_ptr<MessageQueue> queue,
           size_t most_sends)
    : group_(std::move(group)), width_(width), queue_(std::move(queue)), most_sends_(most_sends) {
  for (int each = 0; each < world_size(); ++each) {
    if (each != rank()) peers_.push_back(each);
  }
}

void Mail::send(int peer, std::span<const int64_t> header, const Bytes& payload) {
  auto& sends = sends_[peer];
  std::erase_if(sends, [](const auto& each) { return each->done(); });
  if (sends.size() >= most_sends_) return;
  const Bytes numbers = Bytes::make((width_ + 1) * sizeof(int64_t));
  auto* const to = reinterpret_cast<int64_t*>(numbers.data.get());
  std::ranges::copy(header.first(width_), to);
  to[width_] = static_cast<int64_t>(payload.size);
  sends.push_back(post_send(peer, kHeaderTag, numbers, nullptr));
  if (payload.size == 0) return;
  // The sender may send the next payload once this one has been taken.
  payloads_[peer] = post_send(peer, kPayloadTag, payload, [] { return std::nullopt; });
  sends.push_back(payloads_[peer]);
}

bool Mail::is_loading(int peer) const {
  const auto found = payloads_.find(peer);
  return found != payloads_.end() && !found->second->done();
}

std::optional<PeerMessage> Mail::receive_within(double seconds) {
  const std::chrono::duration<double> wait(seconds);
  return receive(Clock::now() + std::chrono::duration_cast<Clock::duration>(wait));
}

void Mail::finish_sends() {
  for (auto& [peer, sends] : sends_) {
    for (const auto& each : sends) {
      group_->runtime().wait(*each, TimePoint::max());
      each->check();
    }
    sends.clear();
  }
}

std::shared_ptr<Mail::MailTask> Mail::post_send(int peer, uint32_t tag, const Bytes& data,
                                                MessageQueue::Arrival arrival) {
  auto task = std::make_shared<MailTask>(group_, MessageTask::Direction::kSend, peer, tag, data,
                                         queue_, std::move(arrival));
  group_->runtime().submit(task, /*caller_waits=*/false);
  return task;
}

void Mail::post_receive(int peer, uint32_t tag, const Bytes& data, MessageQueue::Arrival arrival) {
  group_->runtime().submit(std::make_shared<MailTask>(group_, MessageTask::Direction::kReceive,
                                                      peer, tag, data, queue_, std::move(arrival)),
                           /*caller_waits=*/false);
}

void Mail::await_header(int peer) {
  const Bytes data = Bytes::make((width_ + 1) * sizeof(int64_t));
  post_receive(peer, kHeaderTag, data, [self = weak_from_this(), peer, data] {
    const std::shared_ptr<Mail> mail = self.lock();
    return mail ? mail->header_arrived(peer, data) : std::nullopt;
  });
}

std::optional<PeerMessage> Mail::header_arrived(int peer, const Bytes& data) {
  const auto* const numbers = reinterpret_cast<const int64_t*>(data.data.get());
  PeerMessage message{.sender = peer, .header = {numbers, numbers + width_}, .payload = {}};
  const int64_t length = numbers[width_];
  if (length < 0) {
    throw Error(ErrorCode::kMismatch, "rank " + std::to_string(peer) + " sent a message of " +
                                          std::to_string(length) + " bytes");
  }
  await_header(peer);
  if (length == 0) return message;
  message.payload = Bytes::make(static_cast<size_t>(length));
  post_receive(peer, kPayloadTag, message.payload, [message] { return message; });
  return std::nullopt;
}

}  // namespace q7x2
