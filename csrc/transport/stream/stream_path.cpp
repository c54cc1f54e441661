#include "transport/stream/stream_path.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"

namespace q7x2 {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// An ack waits for more to tell, for this long or an eighth of the RTT.
constexpr milliseconds kAckDelay{1};
constexpr milliseconds kLongestAckDelay{5};
constexpr int kAckParts = 16;  // parts of the RTT
constexpr uint64_t kAckBytes = 256 << 10;
constexpr size_t kEnvelopesAtOnce = 256;
constexpr size_t kWaitingEnvelopes = size_t{128} << 10;  // bytes
constexpr size_t kChunksAtOnce = 256;
constexpr size_t kShortestChunk = size_t{16} << 10;
constexpr size_t kLongestChunk = size_t{256} << 10;
constexpr microseconds kChunkTime{500};  // on the line, at most
// So many bulk connections can wait for one that repairs a loss.
constexpr size_t kCanSpare = 4;
constexpr int kMostBadInARow = 16;

}  // namespace

StreamPath::StreamPath(EventLoop& loop, const StreamOptions& options, uint64_t own,
                       const StreamTarget& target, const MessageKey& key, StreamMatcher& matcher,
                       OnStreamComplete on_complete, OnStreamNotice on_notice,
                       std::function<void(StreamPath&)> on_dirty)
    : options_(options),
      target_(target),
      on_dirty_(std::move(on_dirty)),
      matcher_(matcher),
      incoming_(
          matcher, options.bounce_bytes,
          [this](const IncomingMessage& message) {
            for (const auto& each : pool_.all()) each->reader().release(message);
          },
          [this] { on_dirty_(*this); },
          [process = target.identity.process, tell = std::move(on_notice)](StreamNotice notice) {
            notice.process = process;
            tell(std::move(notice));
          }),
      outgoing_(options, std::move(on_complete),
                [this](uint64_t number) {
                  for (const auto& each : pool_.all()) each->writer().release(number);
                }),
      pool_(loop, options, own, target, key, *this),
      count_(options.fewest_connections, options.most_connections) {}

StreamPath::Counts StreamPath::counts() const {
  Counts counts = counts_;
  counts.connections_made = pool_.num_made();
  counts.chunks_again = outgoing_.chunks_again();
  counts.bytes_acknowledged = outgoing_.acknowledged_bytes();
  return counts;
}

std::vector<int> StreamPath::sockets() const {
  std::vector<int> all;
  for (const auto& each : pool_.all()) all.push_back(each->socket());
  return all;
}

void StreamPath::send(void* request, uint64_t tag, const std::byte* data, size_t length) {
  if (is_closed_) {
    outgoing_.refuse(request, tag);
    return;
  }
  outgoing_.send(request, tag, data, length);
  write_now();
}

void StreamPath::notify(uint64_t topic, std::string_view text) {
  if (is_closed_) return;
  outgoing_.notify(topic, text);
  write_now();
}

// As far as there is room: if this process is killed after its call has returned, others still get
// what it had sent.
void StreamPath::write_now() {
  const StreamTime now = options_.now();
  write_control(now);
  write_chunks(now);
  on_dirty_(*this);
}

void StreamPath::say_bye() {
  is_leaving_ = true;
  on_dirty_(*this);
}

uint64_t StreamPath::unacknowledged_bytes() const {
  if (is_closed_) return 0;
  const bool says_bye = is_leaving_ && !pool_.all().empty() && !is_flushed();
  return outgoing_.unacknowledged_bytes() + (says_bye ? 1 : 0);
}

bool StreamPath::is_flushed() const {
  if (is_closed_) return true;
  return outgoing_.is_flushed() && said_bye_ == is_leaving_ &&
         std::ranges::all_of(pool_.all(), [](const auto& each) { return each->is_drained(); });
}

void StreamPath::close() {
  if (std::exchange(is_closed_, true)) return;
  counts_ = counts();
  pool_.close();  // from here on nothing touches the memory of messages
  incoming_.close();
  outgoing_.close();
}

void StreamPath::watch() {
  if (!std::exchange(is_watched_, true)) on_dirty_(*this);
}

void StreamPath::fail(Fault fault, const std::string& why) {
  if (is_closed_) return;
  fault_ = fault;
  failure_ = why;
  close();
}

void StreamPath::take(const StreamHello& hello, std::unique_ptr<ByteStream> stream,
                      StreamTime now) {
  pool_.add(std::move(stream), hello.bounce, now);
  on_dirty_(*this);
}

void StreamPath::on_frame(const Frame& frame, std::string_view body) {
  switch (frame.kind) {
    case FrameKind::kEnvelope:
    case FrameKind::kNotice:
      incoming_.on_envelope(frame, body);
      return;
    case FrameKind::kAck:
      wish_ = static_cast<int>(
          std::min<uint64_t>(frame.eager, static_cast<uint64_t>(options_.most_connections)));
      outgoing_.acknowledge(frame, decode_ranges(body), options_.now());
      bad_in_a_row_ = 0;
      return;
    case FrameKind::kGrant:
      outgoing_.grant(frame.message);
      return;
    case FrameKind::kPing:
      ping_ = frame.value;
      return;
    case FrameKind::kBye:
      has_left_ = true;
      return;
    case FrameKind::kPong:
    case FrameKind::kChunk:
      return;
  }
}

// ---------------------------------------------------------------------------------------- progress

void StreamPath::progress(StreamTime now) {
  if (is_closed_) return;
  take_out_broken();
  incoming_.settle_notices();
  if (has_left_ && pool_.all().empty()) {
    close();  // nobody is there to acknowledge the rest
    return;
  }
  pool_.maintain(wanted(), is_busy(), rtt(), now);
  if (pool_.is_given_up()) {
    fail(Fault::kGivenUp, "it has given up the connection to this process");
    return;
  }
  if (const auto death = is_busy() ? pool_.death(now) : std::nullopt) {
    fail(death->has_ended ? Fault::kEnded : Fault::kSilent, death->reason);
    return;
  }
  if (bad_in_a_row_ > kMostBadInARow) {
    fail(Fault::kProtocol, "it sends what cannot be");
    return;
  }
  learn(now);
  outgoing_.find_late(now);
  write_control(now);
  write_chunks(now);
  give_back();
}

void StreamPath::take_out_broken() {
  for (const auto& each : pool_.take_broken()) {
    ++counts_.connections_lost;
    if (each->is_bad()) {
      ++counts_.bad_frames;
      ++bad_in_a_row_;
    } else {
      each->reader().salvage(*this);
    }
    outgoing_.lose(each->id());
    incoming_.repeat();
  }
}

/// What the connections and acknowledgements tell of the line.
void StreamPath::learn(StreamTime now) {
  if (pool_.bounce() > 0) outgoing_.set_bounce(pool_.bounce());
  if (!outgoing_.rtt().is_known() && !pool_.all().empty()) {
    const StreamDuration rtt = pool_.all().front()->tcp(now, age()).rtt;
    outgoing_.rtt().add(std::max<StreamDuration>(rtt, microseconds(1)), now);
    count_.start(rtt);
  }
  const uint64_t bytes = outgoing_.acknowledged_bytes();
  if (waits_for_room_) {
    count_.observe(bytes - learned_bytes_, now - learned_at_, static_cast<int>(pool_.all().size()),
                   rtt(), now);
  }
  learned_bytes_ = bytes;
  learned_at_ = now;
  count_.rest(now);
}

int StreamPath::wanted() const {
  if (has_left_) return 0;
  return std::max(count_.wanted(), wish_);
}

/// How old what the kernel says may be.
StreamDuration StreamPath::age() const {
  return std::clamp<StreamDuration>(outgoing_.rtt().shortest() / 64, microseconds(100),
                                    milliseconds(2));
}

void StreamPath::write_control(StreamTime now) {
  StreamConnection* const control = pool_.control(0, now);
  if (control == nullptr) return;
  if (ping_) control->writer().add({FrameKind::kPong, 0, 0, *std::exchange(ping_, std::nullopt)});
  if (is_busy() && now - last_control_ > options_.silence / 4) {
    last_control_ = now;
    control->writer().add({FrameKind::kPing});
  }
  for (const uint64_t number : incoming_.take_grants(outgoing_.rtt().patience(), now)) {
    StreamConnection& way = *pool_.control(++ack_turn_, now);
    way.writer().add({FrameKind::kGrant, 0, number});
    way.flush();
    next_grants_ = now + outgoing_.rtt().patience();
    if (control->is_over()) return;
  }
  write_envelopes(*control, now);
  write_ack(now);
  if (is_leaving_ && !said_bye_ && outgoing_.is_flushed()) {
    control->writer().add({FrameKind::kBye});
    said_bye_ = true;
  }
  control->flush();
}

void StreamPath::write_ack(StreamTime now) {
  const int wish = count_.wanted();
  if (!incoming_.has_news() && wish == told_wish_) return;
  const StreamDuration delay = std::clamp<StreamDuration>(outgoing_.rtt().shortest() / kAckParts,
                                                          kAckDelay, kLongestAckDelay);
  if (!ack_due_) ack_due_ = now + delay;
  const bool is_due =
      incoming_.is_urgent() || now >= *ack_due_ || incoming_.unacknowledged_bytes() >= kAckBytes;
  if (!is_due) return;
  // In turns: if one is lost, the next one, over another connection, tells most of it as well.
  StreamConnection* const control = pool_.control(++ack_turn_, now);
  if (control == nullptr) return;  // what was just written has shown that all are broken
  IncomingMessages::Ack ack = incoming_.take_ack();
  ack.frame.eager = static_cast<uint64_t>(wish);
  control->writer().add(ack.frame, encode_ranges(ack.ranges));
  control->flush();
  StreamConnection* const other = ack.is_repeated ? pool_.any(++late_turn_, now) : nullptr;
  if (other != nullptr) {
    other->writer().add(ack.frame, encode_ranges(ack.ranges));
    other->flush();
  }
  told_wish_ = wish;
  last_control_ = now;
  ack_due_.reset();
}

void StreamPath::write_envelopes(StreamConnection& control, StreamTime now) {
  // A late one takes another way than before, if there is one.
  if (outgoing_.has_late_envelopes()) {
    StreamConnection& way = *pool_.any(++late_turn_, now);
    while (const auto piece = outgoing_.take_late_envelope(way.id(), now)) {
      way.writer().add(piece->frame, piece->data);
    }
    way.flush();
  }
  for (size_t i = 0; i < kEnvelopesAtOnce && outgoing_.has_envelopes(); ++i) {
    if (control.writer().bytes() > kWaitingEnvelopes) return;
    const auto piece = outgoing_.take_envelope(control.id(), control.room(now, age()), now);
    control.writer().add(piece->frame, piece->data);
    last_control_ = now;
    if (control.writer().bytes() > kShortestChunk) control.flush();
  }
  if (outgoing_.has_envelopes()) on_dirty_(*this);
}

// ------------------------------------------------------------------------------------------ chunks

/// Chunks are short, so that a loss delays few bytes, but not so short that they cost much.
size_t StreamPath::chunk_bytes(const TcpState& tcp) const {
  const double part = std::chrono::duration<double>(kChunkTime) /
                      std::max<std::chrono::duration<double>>(rtt(), microseconds(10));
  const double window = static_cast<double>(tcp.window) * static_cast<double>(num_connections());
  const size_t shortest = std::max(kShortestChunk, tcp.segment);
  return static_cast<size_t>(std::clamp(window * part, static_cast<double>(shortest),
                                        static_cast<double>(std::max(kLongestChunk, shortest))));
}

void StreamPath::write_chunks(StreamTime now) {
  waits_for_room_ = outgoing_.has_chunks() && !pool_.all().empty();
  if (!waits_for_room_ || now < next_chunks_ || !outgoing_.may_send(now)) return;
  std::vector<StreamConnection*> bulk;
  const size_t first = pool_.all().size() == 1 ? 0 : pool_.num_controls();
  for (size_t i = first; i < pool_.all().size(); ++i) {
    if (!pool_.all()[i]->is_over()) bulk.push_back(pool_.all()[i].get());
  }
  if (bulk.size() >= kCanSpare) {
    std::erase_if(bulk, [&](StreamConnection* each) { return !each->tcp(now, age()).is_healthy; });
  }
  // In turns, so that a message is spread over many of them. The first ones are used the most: a
  // connection that pauses loses its window.
  const bool is_only = bulk.size() <= 1;
  size_t written = 0;
  size_t without_room = 0;
  for (size_t turn = 0; !bulk.empty() && without_room < bulk.size() && written < kChunksAtOnce &&
                        outgoing_.has_chunks();
       ++turn) {
    const bool did = write_chunk(*bulk[turn % bulk.size()], is_only, now);
    without_room = did ? 0 : without_room + 1;
    written += did ? 1 : 0;
  }
  waits_for_room_ = outgoing_.has_chunks();
  // To ask the kernel costs more than to wait for a moment.
  if (without_room == bulk.size()) next_chunks_ = now + age();
  if (written == kChunksAtOnce) on_dirty_(*this);
}

/// False: the connection has no room, or there is no chunk for it.
bool StreamPath::write_chunk(StreamConnection& connection, bool is_only, StreamTime now) {
  const size_t room = connection.room(now, age());
  const TcpState& tcp = connection.tcp(now, age());
  // Whole packets, to the last one that the window takes: Linux widens only windows that are full.
  const size_t most = std::min(room, chunk_bytes(tcp)) / tcp.segment * tcp.segment;
  if (most <= Frame::kHeaderBytes) return false;
  const auto piece =
      outgoing_.take_chunk(connection.id(), most - Frame::kHeaderBytes, is_only, now);
  if (!piece) return false;
  connection.writer().add(piece->frame, piece->data);
  connection.flush();
  return true;
}

/// Closes a connection that is not wanted any more, if nothing is on its way there.
void StreamPath::give_back() {
  if (!target_.calls || static_cast<int>(pool_.all().size()) <= wanted()) return;
  StreamConnection& last = *pool_.all().back();
  if (outgoing_.is_in_flight(last.id()) || !last.is_drained()) return;
  outgoing_.lose(last.id());
  pool_.retire(last);
}

StreamTime StreamPath::due(StreamTime now) const {
  StreamTime at = pool_.due(is_busy(), now);
  if (const auto late = outgoing_.due()) at = std::min(at, *late);
  if (ack_due_) at = std::min(at, *ack_due_);
  if (incoming_.has_grants()) at = std::min(at, next_grants_);
  if (waits_for_room_) at = std::min(at, now + std::max<StreamDuration>(age(), microseconds(200)));
  return at;
}

}  // namespace q7x2
