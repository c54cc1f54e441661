#include "executor/probe/probe_tasks.h"

#include <algorithm>
#include <cstring>

#include "executor/probe/far_pairs.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

// Channels. No message of the user is there yet: the group is still being made.
constexpr uint32_t kPing = 1;
constexpr uint32_t kBurst = 2;
constexpr uint32_t kAnswer = 3;
constexpr uint32_t kData = 4;
constexpr uint32_t kAcknowledgement = 5;
constexpr uint32_t kTrain = 11;  // courier.cpp and clock_task.cpp have those between
constexpr uint32_t kTaken = 12;

constexpr int kMostPings = 300;
constexpr int kWarmUp = 5;
constexpr int kLeastPings = 8;
constexpr auto kPingTime = std::chrono::milliseconds(2);
constexpr int kBurstLength = 32;
constexpr int kBursts = 4;
// Between far hosts.
constexpr int kFarPings = 6;
constexpr int kFarWarmUp = 2;

constexpr size_t kLeastWindow = size_t{64} << 10;
constexpr size_t kMostWindow = size_t{8} << 20;
constexpr double kWindowSeconds = 0.01;
constexpr size_t kShortest = size_t{8} << 10;
constexpr size_t kEnoughBytes = size_t{3} << 19;
constexpr double kEnoughSeconds = 0.01;

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

/// In shared memory the low bits of a tag, a collective's fingerprint, do not take part in the
/// match.
uint64_t tag_of(int source, uint32_t channel) {
  return tag::point_to_point(0, source, channel << tag::kFingerprintBits);
}

}  // namespace

// -------------------------------------------------------------------------------- conversation

std::string Conversation::name() const {
  return std::string("probe (") + what_ + " with rank " + std::to_string(peer_) + ") on rank " +
         std::to_string(group().rank()) + " of group '" + group().membership().name() + "'";
}

void Conversation::start(Locked& locked) {
  begin(locked);
  go_on(locked);
}

void Conversation::send(Locked& locked, uint32_t channel, const void* data, size_t bytes) {
  if (is_over(locked)) return;
  ++open_;
  const uint32_t token = channel << 1;
  if (shares_memory_) {
    if (group().messages().send_shared(locked, *this, token, peer_, tag_of(group().rank(), channel),
                                       data, bytes, ShmChannel::kNoTicket)) {
      --open_;
    }
    return;
  }
  group().messages().send(locked, *this, token, peer_,
                          tag::point_to_point(0, group().rank(), channel), data, bytes, wire_);
}

void Conversation::receive(Locked& locked, uint32_t channel, void* data, size_t bytes) {
  if (is_over(locked)) return;
  ++open_;
  const uint32_t token = channel << 1 | 1;
  if (shares_memory_) {
    destinations_[channel] = {data, bytes};
    if (auto message = group().messages().receive_shared(locked, *this, token, peer_,
                                                         tag_of(peer_, channel))) {
      early_.push_back({channel, *message});
    }
    return;
  }
  group().messages().receive(locked, *this, token, peer_,
                             tag::point_to_point(group().slot(), peer_, channel), tag::kExact, data,
                             bytes, wire_);
}

void Conversation::completed(Locked& locked, uint32_t token, size_t length, uint64_t) {
  --open_;
  if ((token & 1) != 0) received(locked, token >> 1, length);
  go_on(locked);
}

void Conversation::arrived(Locked& locked, uint32_t token, const ShmChannel::Message& message) {
  take(locked, token >> 1, message);
  go_on(locked);
}

void Conversation::take(Locked& locked, uint32_t channel, const ShmChannel::Message& message) {
  --open_;
  const auto [data, bytes] = destinations_[channel];
  const size_t length = std::min<size_t>(message.length, bytes);
  if (length > 0) std::memcpy(data, message.data(), length);
  received(locked, channel, length);
}

void Conversation::go_on(Locked& locked) {
  while (!early_.empty() && !is_over(locked)) {
    const Early early = early_.front();
    early_.pop_front();
    take(locked, early.channel, early.message);
  }
  if (open_ == 0) finish(locked);
}

// ---------------------------------------------------------------------------------------- ping

void PingTask::begin(Locked& locked) {
  if (first_) {
    ping(locked);
  } else {
    receive(locked, kPing, &heard_, sizeof(heard_));
  }
}

void PingTask::ping(Locked& locked) {
  if (round_trips_.size() <= kWarmUp) started_at_ = Clock::now();  // the first may have to connect
  last_ = 0;
  if (has_enough()) last_ = is_between_far_hosts() ? 1 : kBursts;
  receive(locked, kPing, &heard_, sizeof(heard_));
  ping_at_ = Clock::now();
  send(locked, kPing, &last_, sizeof(last_));
}

bool PingTask::has_enough() const {
  const size_t count = round_trips_.size();
  if (count + 1 >= kFarPings && is_between_far_hosts()) return true;
  return count + 1 >= kMostPings ||
         (count >= kLeastPings && Clock::now() - started_at_ >= kPingTime);
}

bool PingTask::is_between_far_hosts() const {
  return is_far(*std::min_element(round_trips_.begin() + 1, round_trips_.end()));
}

void PingTask::pong(Locked& locked) {
  if (heard_ != 0) {
    expect_burst(locked);
  } else {
    receive(locked, kPing, &heard_, sizeof(heard_));
  }
  send(locked, kPing, &last_, sizeof(last_));
}

// Before the peer is told that it may begin.
void PingTask::expect_burst(Locked& locked) {
  for (int i = 0; i < kBurstLength; ++i) receive(locked, kBurst, nullptr, 0);
}

void PingTask::burst(Locked& locked) {
  receive(locked, kAnswer, nullptr, 0);
  burst_at_ = Clock::now();
  for (int i = 0; i < kBurstLength; ++i) send(locked, kBurst, nullptr, 0);
}

void PingTask::received(Locked& locked, uint32_t channel, size_t) {
  switch (channel) {
    case kPing:
      if (!first_) {
        pong(locked);
        return;
      }
      round_trips_.push_back(seconds_between(ping_at_, Clock::now()));
      if (last_ == 0) {
        ping(locked);
      } else {
        burst(locked);
      }
      return;
    case kBurst:
      if (++burst_received_ % kBurstLength == 0) {
        if (burst_received_ < static_cast<int>(heard_) * kBurstLength) expect_burst(locked);
        send(locked, kAnswer, nullptr, 0);
      }
      return;
    case kAnswer:
      bursts_.push_back(seconds_between(burst_at_, Clock::now()));
      if (bursts_.size() < last_) burst(locked);
      return;
  }
}

double PingTask::quantile_of_round_trips(double part) const {
  const int warm_up = is_between_far_hosts() ? kFarWarmUp : kWarmUp;
  return quantile({round_trips_.begin() + warm_up, round_trips_.end()}, part);
}

double PingTask::round_trip() const {
  return quantile_of_round_trips(0.25);
}

double PingTask::spread() const {
  return (quantile_of_round_trips(0.75) - quantile_of_round_trips(0.25)) /
         std::max(quantile_of_round_trips(0.5), 1e-9);
}

double PingTask::overhead() const {
  // A burst has more packets than TCP sends at first, so it takes several round trips.
  if (is_between_far_hosts()) return 0;
  const double burst = *std::min_element(bursts_.begin(), bursts_.end());
  return std::max(0.0, burst - round_trip()) / kBurstLength;
}

// -------------------------------------------------------------------------------------- stream

StreamTask::StreamTask(std::shared_ptr<Group> group, int peer, Wire wire, double seconds, Far far,
                       std::chrono::milliseconds timeout)
    : Conversation(std::move(group), "stream", peer, wire, /*tiny=*/false, timeout),
      seconds_(seconds),
      far_(far),
      outgoing_(std::make_unique<std::byte[]>(kLongest)),
      incoming_(std::make_unique<std::byte[]>(kLongest)),
      arrivals_(seconds, far.round_trip),
      acknowledgements_(seconds, far.round_trip),
      pipe_(far.round_trip) {}

void StreamTask::begin(Locked& locked) {
  const bool is_far = far_.round_trip > 0;
  for (int i = 0; i < kPosted && (!is_far || far_.receives); ++i) {
    receive(locked, kData, incoming_.get(), kLongest);
  }
  began_ = Clock::now();
  if (!is_far || far_.sends) fill(locked);
}

bool StreamTask::has_enough(TimePoint now) const {
  const double elapsed = acknowledgements_.seconds_at(now);
  if (far_.round_trip > 0 && seconds_ > 0) return elapsed >= seconds_ || pipe_.had_most_bytes();
  if (far_.round_trip > 0) return pipe_.is_full();
  return elapsed >= seconds_ ||
         (acknowledgements_.bytes() >= kEnoughBytes && elapsed >= kEnoughSeconds);
}

size_t StreamTask::window(TimePoint now) const {
  if (far_.round_trip > 0) return pipe_.window();
  // Twice as much as before at most, or the burst of a slow link would seem to be its rate.
  const size_t acknowledged = acknowledgements_.bytes();
  const double carried =
      static_cast<double>(acknowledged) / std::max(acknowledgements_.seconds_at(now), 1e-6);
  const double seconds = kWindowSeconds + 2 * round_trip_;
  return std::clamp(std::min(acknowledged / 2, static_cast<size_t>(carried * seconds)),
                    kLeastWindow, kMostWindow);
}

void StreamTask::fill(Locked& locked) {
  if (finished_sending_ || is_over(locked)) return;
  const TimePoint now = Clock::now();
  if (has_enough(now)) {
    finished_sending_ = true;
    // An empty message for each receive that the peer has posted.
    for (int i = 0; i < kPosted; ++i) send(locked, kData, outgoing_.get(), 0);
    return;
  }
  const size_t acknowledged = acknowledgements_.bytes();
  const size_t window = this->window(now);
  const size_t length = std::clamp(window / 8, kShortest, kLongest);
  while (!is_over(locked) && sent_ - acknowledged + length <= window) {
    unacknowledged_.push(length);
    sent_ += length;
    receive(locked, kAcknowledgement, nullptr, 0);
    send(locked, kData, outgoing_.get(), length);
  }
}

void StreamTask::received(Locked& locked, uint32_t channel, size_t bytes) {
  if (channel == kAcknowledgement) {
    if (round_trip_ == 0) round_trip_ = seconds_between(began_, Clock::now());
    acknowledgements_.passed(Clock::now(), unacknowledged_.front());
    pipe_.acknowledged(Clock::now(), acknowledgements_.bytes());
    unacknowledged_.pop();
    fill(locked);
    return;
  }
  if (bytes == 0) return;
  arrivals_.passed(Clock::now(), bytes);
  send(locked, kAcknowledgement, nullptr, 0);
  // Also behind the peer's first empty message: long ones before it may arrive after it, and each
  // empty one needs a receive, or it would be taken for the next stream's.
  receive(locked, kData, incoming_.get(), kLongest);
}

// --------------------------------------------------------------------------------------- train

TrainTask::TrainTask(std::shared_ptr<Group> group, int peer, Wire wire, uint64_t bytes, bool sends,
                     std::chrono::milliseconds timeout)
    : Conversation(std::move(group), "train", peer, wire, /*tiny=*/false, timeout),
      bytes_(bytes),
      sends_(sends),
      buffer_(std::make_unique<std::byte[]>(bytes)) {}

void TrainTask::begin(Locked& locked) {
  if (sends_) {
    send_next(locked);
    return;
  }
  for (int i = 0; i < kMessages; ++i) receive(locked, kTrain, buffer_.get(), bytes_);
}

void TrainTask::send_next(Locked& locked) {
  receive(locked, kTaken, nullptr, 0);
  sent_at_ = Clock::now();
  send(locked, kTrain, buffer_.get(), bytes_);
}

void TrainTask::received(Locked& locked, uint32_t channel, size_t) {
  if (channel == kTrain) {
    send(locked, kTaken, nullptr, 0);
    return;
  }
  times_.push_back(seconds_between(sent_at_, Clock::now()));
  if (times_.size() < kMessages) send_next(locked);
}

double TrainTask::seconds() const {
  return quantile(times_, 0.5);
}

}  // namespace q7x2
