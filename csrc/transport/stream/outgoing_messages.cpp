#include "transport/stream/outgoing_messages.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "transport/stream/incoming_messages.h"

namespace q7x2 {
namespace {

constexpr int kMostDoublings = 6;
constexpr size_t kProbes = 2;           // chunks that go again if nothing is acknowledged any more
constexpr size_t kEnvelopesAgain = 64;  // at once

void check(bool condition, const char* what) {
  if (!condition) throw Error(ErrorCode::kMismatch, std::string("a path brought ") + what);
}

}  // namespace

OutgoingMessages::Outgoing* OutgoingMessages::find(uint64_t number) {
  if (number < first_ || number - first_ >= outgoing_.size()) return nullptr;
  Outgoing& found = outgoing_[number - first_];
  return found.is_done ? nullptr : &found;
}

OutgoingMessages::Outgoing& OutgoingMessages::add(uint64_t tag, const void* data, size_t length) {
  Outgoing& message = outgoing_.emplace_back();
  message.number = first_ + outgoing_.size() - 1;
  message.tag = tag;
  message.data = static_cast<const std::byte*>(data);
  message.total = length;
  return message;
}

void OutgoingMessages::copy(Outgoing& message) {
  message.copy = std::make_unique_for_overwrite<std::byte[]>(message.total);
  if (message.total > 0) std::memcpy(message.copy.get(), message.data, message.total);
  message.data = message.copy.get();
  copied_ += message.total;
}

void OutgoingMessages::send(void* request, uint64_t tag, const std::byte* data, size_t length) {
  Outgoing& message = add(tag, data, length);
  if (length > options_.copied_message || copied_ + length > options_.copied_bytes) {
    message.request = request;
    return;
  }
  copy(message);
  on_complete_(request, StreamStatus::kOk, length, tag);
}

void OutgoingMessages::notify(uint64_t topic, std::string_view text) {
  Outgoing& message = add(topic, text.data(), text.size());
  message.is_notice = true;
  copy(message);
}

// ---------------------------------------------------------------------------------- what goes next

std::optional<OutgoingMessages::Piece> OutgoingMessages::take_late_envelope(uint64_t connection,
                                                                            StreamTime now) {
  while (!late_envelopes_.empty()) {
    const uint64_t number = *late_envelopes_.begin();
    late_envelopes_.erase(late_envelopes_.begin());
    const Outgoing* const message = find(number);
    if (message == nullptr || number < arrived_envelopes_) continue;
    envelopes_[number - arrived_envelopes_] = {connection, now, /*was_late=*/true};
    return envelope(*message);
  }
  return std::nullopt;
}

std::optional<OutgoingMessages::Piece> OutgoingMessages::take_envelope(uint64_t connection,
                                                                       size_t room,
                                                                       StreamTime now) {
  if (!has_envelopes()) return std::nullopt;
  if (in_flight_.empty() && envelopes_.empty()) last_progress_ = now;
  Outgoing& message = outgoing_[next_envelope_ - first_];
  const uint64_t free = bounce_ - std::min(bounce_, eager_bytes_ - released_);
  message.eager = message.total <= free ? message.total : std::min(message.total, free / 2);
  message.limit = message.eager;
  message.is_inside = message.eager == message.total && message.total > 0 &&
                      message.total <= std::min(room, options_.inline_bytes);
  eager_bytes_ += message.eager;
  if (!message.is_inside && message.eager > 0) {
    (message.is_short() ? short_ : long_).push_back(message.number);
  }
  ++next_envelope_;
  envelopes_.push_back({connection, now});
  return envelope(message);
}

bool OutgoingMessages::has_envelopes() const {
  return next_envelope_ < first_ + outgoing_.size() &&
         next_envelope_ - arrived_envelopes_ < IncomingMessages::kMostAhead;
}

OutgoingMessages::Piece OutgoingMessages::envelope(const Outgoing& message) {
  Piece piece;
  piece.frame = {message.is_notice ? FrameKind::kNotice : FrameKind::kEnvelope,
                 0,
                 message.number,
                 message.tag,
                 message.total,
                 message.eager};
  if (message.is_inside) {
    piece.frame.bytes = static_cast<uint32_t>(message.total);
    piece.data = message.data;
  }
  return piece;
}

OutgoingMessages::Piece OutgoingMessages::give(const Outgoing& message, ByteRange range,
                                               uint64_t connection, bool was_late, StreamTime now) {
  if (in_flight_.empty() && envelopes_.empty()) last_progress_ = now;
  if (in_flight_.empty()) last_ack_ = newest_ = now;
  in_flight_.push_back({message.number,
                        range,
                        connection,
                        now,
                        was_late,
                        {acknowledged_bytes_, last_ack_, newest_, now}});
  in_flight_bytes_ += range.size();
  pacer_.spend(range.size());
  return {{FrameKind::kChunk, static_cast<uint32_t>(range.size()), message.number, range.first,
           message.total, message.eager},
          message.data + range.first};
}

OutgoingMessages::Outgoing* OutgoingMessages::next_fresh() {
  for (std::deque<uint64_t>* const queue : {&short_, &long_}) {
    while (!queue->empty()) {
      Outgoing* const message = find(queue->front());
      if (message != nullptr && message->next < message->limit) return message;
      queue->pop_front();
    }
  }
  return nullptr;
}

std::optional<OutgoingMessages::Piece> OutgoingMessages::take_again(uint64_t connection,
                                                                    size_t most, bool is_only,
                                                                    const Outgoing* fresh,
                                                                    StreamTime now) {
  for (auto each = again_.begin(); each != again_.end();) {
    const Outgoing* const message = find(each->number);
    if (message == nullptr || message->acknowledged.contains(each->range)) {
      each = again_.erase(each);
      continue;
    }
    const bool is_later = fresh != nullptr && (fresh->number <= message->number ||
                                               (fresh->is_short() && !message->is_short()));
    if (is_later || (each->connection == connection && !is_only)) {
      ++each;
      continue;
    }
    const ByteRange range{each->range.first, std::min(each->range.last, each->range.first + most)};
    each->range.first = range.last;
    if (each->range.size() == 0) again_.erase(each);
    ++chunks_again_;
    return give(*message, range, connection, /*was_late=*/true, now);
  }
  return std::nullopt;
}

bool OutgoingMessages::may_send(StreamTime now) {
  pacer_.advance(rate_.pace(rtt_), now);
  return pacer_.may_send() && in_flight_bytes_ <= rate_.limit(rtt_);
}

std::optional<OutgoingMessages::Piece> OutgoingMessages::take_chunk(uint64_t connection,
                                                                    size_t most, bool is_only,
                                                                    StreamTime now) {
  if (!may_send(now)) return std::nullopt;
  Outgoing* const fresh = next_fresh();
  if (auto again = take_again(connection, most, is_only, fresh, now)) return again;
  if (fresh == nullptr) return std::nullopt;
  const ByteRange range{fresh->next, std::min(fresh->limit, fresh->next + most)};
  fresh->next = range.last;
  return give(*fresh, range, connection, /*was_late=*/false, now);
}

// ---------------------------------------------------------------------------------- what arrived

void OutgoingMessages::acknowledge(const Frame& ack, std::span<const AckRange> ranges,
                                   StreamTime now) {
  check(ack.total <= next_envelope_ && ack.message <= ack.total && ack.value <= eager_bytes_,
        "an ack of what was never sent");
  const uint64_t before = acknowledged_bytes_ + arrived_envelopes_;
  released_ = std::max(released_, ack.value);
  acknowledge_envelopes(ack.total, now);
  for (uint64_t number = first_; number < ack.message; ++number) {
    if (Outgoing* const message = find(number)) finish(*message);
  }
  for (const AckRange& each : ranges) {
    check(each.message < next_envelope_, "an ack of what was never sent");
    Outgoing* const message = find(each.message);
    if (message == nullptr) continue;
    check(each.range.last <= message->total, "an ack beyond its message");
    acknowledged_bytes_ += message->acknowledged.add(each.range);
    finish_if_whole(*message);
  }
  if (acknowledged_bytes_ + arrived_envelopes_ != before) {
    last_progress_ = now;
    silent_checks_ = 0;
  }
  sweep(now);
  retire();
  last_ack_ = now;
}

void OutgoingMessages::acknowledge_envelopes(uint64_t below, StreamTime now) {
  if (below <= arrived_envelopes_) return;
  const Envelope newest = envelopes_[below - arrived_envelopes_ - 1];
  if (!newest.was_late) rtt_.add(now - newest.sent, now);
  for (; arrived_envelopes_ < below; ++arrived_envelopes_) {
    envelopes_.pop_front();
    late_envelopes_.erase(arrived_envelopes_);
    Outgoing* const message = find(arrived_envelopes_);
    if (message == nullptr) continue;
    if (message->is_inside) acknowledged_bytes_ += message->acknowledged.add({0, message->total});
    finish_if_whole(*message);
  }
}

void OutgoingMessages::finish_if_whole(Outgoing& message) {
  if (message.number < arrived_envelopes_ && message.acknowledged.covered() == message.total) {
    finish(message);
  }
}

void OutgoingMessages::finish(Outgoing& message) {
  acknowledged_bytes_ += message.acknowledged.add({0, message.total});
  message.is_done = true;
  on_released_(message.number);
  if (message.copy) copied_ -= message.total;
  message.copy.reset();
  if (message.request != nullptr) {
    on_complete_(message.request, StreamStatus::kOk, message.total, message.tag);
  }
}

void OutgoingMessages::retire() {
  while (!outgoing_.empty() && outgoing_.front().is_done) {
    outgoing_.pop_front();
    ++first_;
  }
}

/// Forgets the chunks that have arrived, and finds those that should have.
void OutgoingMessages::sweep(StreamTime now) {
  for (auto each = in_flight_.begin(); each != in_flight_.end();) {
    const Outgoing* const message = find(each->number);
    if (message != nullptr && !message->acknowledged.contains(each->range)) {
      ++each;
      continue;
    }
    // If it was sent twice, nobody knows which copy has arrived.
    if (!each->was_late && each->sent > newest_) {
      newest_ = each->sent;
      rtt_.add(now - each->sent, now);
      rate_.add(each->mark, acknowledged_bytes_, now);
    }
    in_flight_bytes_ -= each->range.size();
    each = in_flight_.erase(each);
  }
  find_overtaken(now);
}

void OutgoingMessages::find_overtaken(StreamTime now) {
  const auto is_late = [&](StreamTime sent) {
    return sent + rtt_.late() <= now && sent + rtt_.reordering() < newest_;
  };
  while (!in_flight_.empty() && is_late(in_flight_.front().sent)) send_again(in_flight_.begin());
  for (size_t i = 0; i < std::min(envelopes_.size(), kEnvelopesAgain); ++i) {
    if (!is_late(envelopes_[i].sent)) break;
    late_envelopes_.insert(arrived_envelopes_ + i);
  }
}

void OutgoingMessages::send_again(std::list<InFlight>::iterator late) {
  in_flight_bytes_ -= late->range.size();
  again_.splice(again_.end(), in_flight_, late);
}

void OutgoingMessages::find_late(StreamTime now) {
  const auto at = due();
  if (!at || now < *at) return;
  find_overtaken(now);
  if (now < patience_ends()) return;
  silent_checks_ = std::min(silent_checks_ + 1, kMostDoublings);
  last_progress_ = now;
  for (size_t i = 0; i < kProbes && !in_flight_.empty(); ++i) send_again(in_flight_.begin());
  for (size_t i = 0; i < std::min(envelopes_.size(), kEnvelopesAgain); ++i) {
    late_envelopes_.insert(arrived_envelopes_ + i);
  }
}

StreamTime OutgoingMessages::patience_ends() const {
  return last_progress_ + rtt_.patience() * (1 << silent_checks_);
}

std::optional<StreamTime> OutgoingMessages::due() const {
  if (in_flight_.empty() && envelopes_.empty()) return std::nullopt;
  StreamTime at = patience_ends();
  if (!in_flight_.empty()) {
    const StreamTime sent = in_flight_.front().sent;
    if (sent + rtt_.reordering() < newest_) at = std::min(at, sent + rtt_.late());
  }
  return at;
}

void OutgoingMessages::grant(uint64_t number) {
  check(number < next_envelope_, "a grant for what was never sent");
  Outgoing* const message = find(number);
  if (message == nullptr || message->limit == message->total) return;
  const bool is_queued = message->next < message->limit;
  message->limit = message->total;
  if (!is_queued) (message->is_short() ? short_ : long_).push_back(number);
}

void OutgoingMessages::lose(uint64_t connection) {
  for (auto each = in_flight_.begin(); each != in_flight_.end();) {
    const auto lost = each++;
    if (lost->connection == connection) send_again(lost);
  }
  for (size_t i = 0; i < envelopes_.size(); ++i) {
    if (envelopes_[i].connection == connection) late_envelopes_.insert(arrived_envelopes_ + i);
  }
}

uint64_t OutgoingMessages::unacknowledged_bytes() const {
  uint64_t bytes = 0;
  for (const Outgoing& message : outgoing_) {
    if (!message.is_done) bytes += message.total - message.acknowledged.covered() + 1;
  }
  return bytes;
}

bool OutgoingMessages::is_in_flight(uint64_t connection) const {
  return std::ranges::any_of(in_flight_,
                             [&](const InFlight& each) { return each.connection == connection; });
}

void OutgoingMessages::close() {
  for (Outgoing& message : outgoing_) {
    if (message.is_done) continue;
    message.is_done = true;
    on_released_(message.number);
    if (message.request != nullptr) {
      on_complete_(message.request, StreamStatus::kPathClosed, 0, message.tag);
    }
  }
  retire();
  in_flight_.clear();
  in_flight_bytes_ = 0;
  again_.clear();
}

}  // namespace q7x2
