#include "transport/stream/incoming_messages.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

namespace q7x2 {
namespace {

// The sender of a longer message waits for its acknowledgement; it has copied a shorter one.
constexpr uint64_t kUrgentLength = 64 << 10;

void check(bool condition, const char* what) {
  if (!condition) throw Error(ErrorCode::kMismatch, std::string("a path brought ") + what);
}

}  // namespace

IncomingMessage& IncomingMessages::message_of(const Frame& frame) {
  check(frame.message < next_ + kMostAhead, "a message far ahead of its time");
  const auto found = messages_.find(frame.message);
  if (found != messages_.end()) {
    check(found->second->total == frame.total && found->second->eager == frame.eager,
          "a message of two lengths");
    return *found->second;
  }
  check(frame.eager <= bounce_bytes_ - held_, "more than the bounce memory holds");
  const auto message = std::make_shared<IncomingMessage>();
  message->owner = this;
  message->number = frame.message;
  message->total = frame.total;
  message->eager = frame.eager;
  messages_.emplace(frame.message, message);
  held_ += frame.eager;
  return *message;
}

void IncomingMessages::on_envelope(const Frame& frame, std::string_view body) {
  note_news();
  if (frame.message < next_ || done_.contains({frame.message, frame.message + 1})) {
    has_duplicates_ = true;
    return;
  }
  IncomingMessage& message = message_of(frame);
  if (message.has_envelope) return;
  if (frame.kind == FrameKind::kNotice) {
    uint64_t bytes = 0;  // which notices that are not whole yet occupy
    for (const auto& [number, other] : messages_) bytes += other->is_notice ? other->total : 0;
    check(bytes + frame.total <= Frame::kMaxNotice, "more than notices may be");
    message.is_notice = true;
  }
  message.tag = frame.value;
  message.has_envelope = true;
  if (!body.empty() && message.received.empty()) {
    message.bounce = std::make_shared_for_overwrite<std::byte[]>(body.size());
    std::memcpy(message.bounce.get(), body.data(), body.size());
    message.received.add({0, body.size()});
  }
  if (message.is_whole()) done_.add({frame.message, frame.message + 1});
  // Those that have waited for this one.
  for (auto next = messages_.find(next_); next != messages_.end() && next->second->has_envelope;
       next = messages_.find(next_)) {
    const auto ready = next->second;
    ++next_;
    if (ready->is_notice) {
      begin_notice(*ready);
    } else {
      matcher_.arrived(ready);
    }
  }
}

void IncomingMessages::begin_notice(IncomingMessage& message) {
  message.text.resize(message.total);
  message.place = reinterpret_cast<std::byte*>(message.text.data());
  message.request = &message;
  on_matched(message);
}

void IncomingMessages::finish(IncomingMessage& message) {
  if (!message.is_notice) {
    matcher_.finish(message);
    return;
  }
  const auto later = std::ranges::upper_bound(early_, message.number, {},
                                              &std::pair<uint64_t, StreamNotice>::first);
  StreamNotice& kept =
      early_
          .emplace(later, message.number,
                   StreamNotice{.topic = message.tag, .text = std::move(message.text)})
          ->second;
  if (!has_received(message.number)) {
    StreamNotice early = kept;
    early.turn = StreamNotice::Turn::kEarly;
    kept.turn = StreamNotice::Turn::kAgain;
    on_notice_(std::move(early));
  }
  settle_notices();
}

void IncomingMessages::settle_notices() {
  while (!early_.empty() && has_received(early_.front().first)) {
    StreamNotice notice = std::move(early_.front().second);
    early_.pop_front();
    on_notice_(std::move(notice));
  }
}

IncomingMessages::Body IncomingMessages::place(const Frame& chunk) {
  Body body;
  body.number = chunk.message;
  body.range = {chunk.value, chunk.value + chunk.bytes};
  if (done_.contains({chunk.message, chunk.message + 1})) return body;
  check(chunk.message >= next_ || messages_.contains(chunk.message), "a message that is over");
  IncomingMessage& message = message_of(chunk);
  check(message.is_matched() || body.range.last <= message.eager, "bytes that nobody has granted");
  if (message.received.contains(body.range)) return body;
  body.message = messages_[chunk.message];
  if (message.is_matched()) {
    body.to = message.place + body.range.first;
    return body;
  }
  if (!message.bounce) {
    message.bounce = std::make_shared_for_overwrite<std::byte[]>(message.eager);
  }
  body.bounce = message.bounce;
  body.to = message.bounce.get() + body.range.first;
  return body;
}

void IncomingMessages::on_chunk(const Body& body) {
  note_news();
  tell(body.number, body.range);
  if (!body.message || body.to == nullptr || body.message->is_over || body.message->is_whole()) {
    has_duplicates_ = true;
    return;
  }
  IncomingMessage& message = *body.message;
  if (body.bounce && message.is_matched()) {
    std::memcpy(message.place + body.range.first, body.to, body.range.size());
  }
  news_bytes_ += message.received.add(body.range);
  if (body.range.last > message.eager) grants_.erase(message.number);
  if (!message.is_whole()) return;
  done_.add({message.number, message.number + 1});
  is_urgent_ = is_urgent_ || message.total >= kUrgentLength;
  if (message.is_matched()) {
    end(message);
    finish(message);
  }
}

void IncomingMessages::note_news() {
  has_news_ = true;
  on_news_();
}

void IncomingMessages::release(const IncomingMessage& message) {
  held_ -= message.eager;
  released_ += message.eager;
  note_news();
}

void IncomingMessages::tell(uint64_t number, ByteRange range) {
  if (range.size() > 0) news_[number].add(range);
}

void IncomingMessages::end(IncomingMessage& message) {
  message.is_over = true;
  message.bounce.reset();
  grants_.erase(message.number);
  done_.add({message.number, message.number + 1});
  note_news();
  is_urgent_ = is_urgent_ || message.total >= kUrgentLength;
  tell(message.number, {0, message.total});
  on_over_(message);
  messages_.erase(message.number);
}

void IncomingMessages::on_matched(IncomingMessage& message) {
  const bool is_whole = message.is_whole();
  release(message);
  message.unbounce();
  if (is_whole) {
    end(message);
    finish(message);
    return;
  }
  if (message.eager < message.total) grants_.emplace(message.number, StreamTime{});
}

void IncomingMessages::on_dropped(IncomingMessage& message) {
  if (!message.is_matched()) release(message);
  end(message);
}

/// Takes the ranges of one message out of the news, or as many as an ack has room for.
void IncomingMessages::add_ranges(std::vector<AckRange>& ranges, News::iterator news) {
  const auto message = messages_.find(news->first);
  RangeSet rest;
  for (const ByteRange& range : news->second.ranges()) {
    if (ranges.size() == Frame::kMaxAckRanges) {
      rest.add(range);
      continue;
    }
    // What is around it was acknowledged before, perhaps by an ack that was lost.
    const AckRange next{news->first, message == messages_.end()
                                         ? range
                                         : message->second->received.around(range.first)};
    if (ranges.empty() || ranges.back() != next) ranges.push_back(next);
  }
  if (rest.empty()) {
    news_.erase(news);
  } else {
    news->second = rest;
  }
}

IncomingMessages::Ack IncomingMessages::take_ack() {
  Ack ack;
  ack.frame.kind = FrameKind::kAck;
  ack.frame.message = done_.first_missing();
  ack.frame.value = released_;
  ack.frame.total = next_;
  news_.erase(news_.begin(), news_.lower_bound(ack.frame.message));
  while (!news_.empty() && ack.ranges.size() < Frame::kMaxAckRanges) {
    add_ranges(ack.ranges, news_.begin());
  }
  ack.frame.bytes = static_cast<uint32_t>(ack.ranges.size() * sizeof(AckRange));
  ack.is_repeated = std::exchange(has_duplicates_, false);
  news_bytes_ = 0;
  has_news_ = !news_.empty();
  is_urgent_ = is_urgent_ && has_news_;
  return ack;
}

std::vector<uint64_t> IncomingMessages::take_grants(StreamDuration patience, StreamTime now) {
  std::vector<uint64_t> due;
  for (auto& [number, told] : grants_) {
    if (now - told < patience) continue;
    told = now;
    due.push_back(number);
  }
  return due;
}

void IncomingMessages::repeat() {
  note_news();
  for (const auto& [number, message] : messages_) {
    for (const ByteRange& range : message->received.ranges()) tell(number, range);
    if (message->is_matched() && message->eager < message->total) grants_[number] = {};
  }
}

bool IncomingMessages::is_expecting() const {
  return std::ranges::any_of(messages_,
                             [](const auto& entry) { return entry.second->is_matched(); });
}

bool IncomingMessages::has_received(uint64_t count) const {
  if (next_ < count) return false;
  return std::all_of(messages_.begin(), messages_.lower_bound(count), [](const auto& entry) {
    const IncomingMessage& message = *entry.second;
    return message.is_whole() ||
           (!message.is_matched() && message.received.covered() == message.eager);
  });
}

void IncomingMessages::close() {
  const auto all = std::exchange(messages_, {});
  for (const auto& [number, message] : all) {
    if (message->is_whole() && number < next_) {
      message->owner = nullptr;  // a receive may still get it
      continue;
    }
    message->is_over = true;
    on_over_(*message);
    matcher_.fail(*message);
  }
  settle_notices();  // what is missing never comes
}

}  // namespace q7x2
