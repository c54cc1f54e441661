#include "transport/stream/connection_pool.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <utility>

namespace q7x2 {
namespace {

constexpr std::chrono::seconds kCallPatience{3};
constexpr std::chrono::milliseconds kFirstPause{10};
constexpr int kMostDoublings = 6;
constexpr size_t kMostCalls = 16;  // at once
constexpr size_t kMostRescues = 4;
constexpr int kRefusalsOfTheDead = 3;
// What the other process has to call this one after all connections broke: it notices that after
// half a round trip, and its call, with a handshake of TLS, takes two.
constexpr int kRoundTripsOfACall = 4;
constexpr std::chrono::milliseconds kTimeToAct{100};
constexpr int kFirstCallSilences = 5;
constexpr size_t kPerControl = 8;  // connections
constexpr int kLooks = 8;  // for signs of life, in the time that the other process may be silent

uint64_t random_number() {
  uint64_t number = 0;
  fill_randomly(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

}  // namespace

ConnectionPool::ConnectionPool(EventLoop& loop, const StreamOptions& options, uint64_t own,
                               const StreamTarget& target, const MessageKey& key,
                               ConnectionOwner& owner)
    : loop_(loop),
      options_(options),
      own_(own),
      target_(target),
      key_(key),
      owner_(owner),
      heard_(options.now()),
      looked_(heard_),
      next_call_(heard_),
      next_life_(heard_),
      next_rescue_(heard_),
      alone_since_(heard_) {}

void ConnectionPool::add(std::unique_ptr<ByteStream> stream, uint64_t bounce, StreamTime now) {
  bounce_ = bounce;
  heard_ = now;
  ++made_;
  refusals_ = 0;
  connections_.push_back(
      std::make_unique<StreamConnection>(next_id_++, std::move(stream), loop_, owner_));
  connections_.back()->read_what_came_early();
}

std::vector<std::unique_ptr<StreamConnection>> ConnectionPool::take_broken() {
  std::vector<std::unique_ptr<StreamConnection>> broken;
  for (auto& each : connections_) {
    if (each->is_over()) broken.push_back(std::move(each));
  }
  if (!broken.empty()) {
    std::erase(connections_, nullptr);
    if (connections_.empty()) alone_since_ = options_.now();
  }
  return broken;
}

void ConnectionPool::retire(const StreamConnection& connection) {
  std::erase_if(connections_, [&](const auto& each) { return each.get() == &connection; });
}

void ConnectionPool::close() {
  connections_.clear();
  calls_.clear();
}

size_t ConnectionPool::num_controls() const {
  return std::min(connections_.size(), 1 + connections_.size() / kPerControl);
}

StreamConnection* ConnectionPool::control(size_t turn, StreamTime now) const {
  return first_free(turn, num_controls(), now);
}

StreamConnection* ConnectionPool::any(size_t turn, StreamTime now) const {
  return first_free(turn, connections_.size(), now);
}

/// Looks at the first `count` connections; if none of these is free, it returns a busy one.
StreamConnection* ConnectionPool::first_free(size_t turn, size_t count, StreamTime now) const {
  constexpr std::chrono::microseconds kAge{500};
  StreamConnection* busy = nullptr;
  for (size_t i = 0; i < count; ++i) {
    StreamConnection* const each = connections_[(turn + i) % count].get();
    if (each->is_over()) continue;
    const TcpState& state = each->tcp(now, kAge);
    if (state.is_healthy && state.room >= state.segment && each->writer().is_empty()) return each;
    if (busy == nullptr) busy = each;
  }
  for (size_t i = 0; i < connections_.size() && busy == nullptr; ++i) {
    if (!connections_[i]->is_over()) busy = connections_[i].get();
  }
  return busy;
}

void ConnectionPool::maintain(int wanted, bool is_busy, StreamDuration rtt, StreamTime now) {
  rtt_ = rtt;
  // While this process did not look, because it was stopped or starved, nobody was silent.
  const StreamDuration asleep = now - std::exchange(looked_, now);
  if (asleep > options_.silence / 4) heard_ += asleep;
  for (const auto& each : connections_) {
    if (each->take_heard()) heard_ = std::max(heard_, now);
  }
  look_at_calls(now);
  if (!is_busy) {
    heard_ = now;
  } else if (now >= next_life_) {
    listen_for_life(now);
    next_life_ = now + options_.silence / kLooks;
  }
  if (wanted > 0 && may_call(is_busy, now)) call_more(wanted, now);
}

/// The side that does not make the connections does so if all have ended, which shows whether the
/// other process has, or if the other side seems not to be able to.
bool ConnectionPool::may_call(bool is_busy, StreamTime now) const {
  if (target_.addresses.empty()) return false;
  if (!is_busy && failures_ > 0) return false;
  if (target_.calls) return true;
  return connections_.empty() &&
         (target_.begins || made_ > 0 || now - heard_ > options_.silence / 4);
}

void ConnectionPool::look_at_calls(StreamTime now) {
  for (auto each = calls_.begin(); each != calls_.end();) {
    StreamCall& attempt = each->attempt;
    const StreamCall::State state = attempt.state();
    if (state == StreamCall::State::kMade) {
      add(attempt.take_stream(), attempt.answer().bounce, now);
      failures_ = 0;
      const StreamAddress made = attempt.target();
      each = calls_.erase(each);
      if (const auto before = std::exchange(address_, made); !before || !(*before == made)) {
        calls_.remove_if([&](const Call& other) { return !(other.attempt.target() == made); });
        each = calls_.begin();
      }
      continue;
    }
    if (state == StreamCall::State::kGivenUp) is_given_up_ = true;
    const bool has_failed =
        state >= StreamCall::State::kRefused || now - each->since > kCallPatience;
    if (!has_failed) {
      ++each;
      continue;
    }
    const bool is_alone = connections_.empty() && each->since >= alone_since_;
    if (state == StreamCall::State::kRefused && is_alone) ++refusals_;
    const bool is_heard = attempt.is_heard();
    each = calls_.erase(each);
    if (!is_heard) fail(now);
  }
}

void ConnectionPool::fail(StreamTime now) {
  next_call_ = now + kFirstPause * (1 << std::min(failures_, kMostDoublings));
  ++failures_;
  // Perhaps it can be reached at another address.
  if (connections_.empty()) address_.reset();
}

void ConnectionPool::call(const StreamAddress& target) {
  const StreamHello hello{own_,           target_.identity.process, target_.epoch,
                          next_number_++, random_number(),          options_.bounce_bytes};
  calls_.emplace_back(loop_, target, hello, key_, options_, owner_).since = options_.now();
}

void ConnectionPool::call_more(int wanted, StreamTime now) {
  const bool is_silent = now - heard_ > options_.silence / 4;
  if (is_silent && now >= next_rescue_ && calls_.size() < kMostRescues) {
    next_rescue_ = now + options_.silence / 8;
    for (const StreamAddress& each : target_.addresses) call(each);
    return;
  }
  if (now < next_call_) return;
  if (!address_) {
    if (!calls_.empty() || !connections_.empty()) return;
    for (const StreamAddress& each : target_.addresses) call(each);
    return;
  }
  while (connections_.size() + calls_.size() < static_cast<size_t>(wanted) &&
         calls_.size() < kMostCalls) {
    call(*address_);
  }
}

/// Asks the kernels, and gives up connections that are silent although the path is not.
void ConnectionPool::listen_for_life(StreamTime now) {
  for (const auto& each : connections_) {
    if (target_.may_be_relayed) break;
    heard_ = std::max(heard_, now - each->tcp(now, options_.silence / 16).since_heard);
  }
  if (!target_.may_be_relayed &&
      std::ranges::any_of(calls_, [](const Call& each) { return each.attempt.is_heard(); })) {
    heard_ = std::max(heard_, now);
  }
  for (const auto& each : connections_) {
    const int silences = each->count_silence(now, options_.silence / kLooks);
    if (silences > kLooks / 2 && now - heard_ < options_.silence / 4) {
      each->end();
      owner_.on_activity();
    }
  }
}

StreamTime ConnectionPool::due(bool is_busy, StreamTime now) const {
  StreamTime at = is_busy ? next_life_ : StreamTime::max();
  for (const Call& each : calls_) at = std::min(at, each.since + kCallPatience);
  if (may_call(is_busy, now) && next_call_ > now) at = std::min(at, next_call_);
  if (is_busy && is_refused() && refusals_count_at() > now) at = std::min(at, refusals_count_at());
  return at;
}

bool ConnectionPool::is_refused() const {
  const auto enough = kRefusalsOfTheDead * static_cast<int>(num_addresses());
  return made_ > 0 && connections_.empty() && refusals_ > 0 && refusals_ >= enough;
}

StreamTime ConnectionPool::refusals_count_at() const {
  return alone_since_ + kRoundTripsOfACall * rtt_ + kTimeToAct;
}

/// A process that cannot be called gives no sign of life until it calls.
StreamDuration ConnectionPool::patience() const {
  const bool was_never_heard = made_ == 0 && target_.addresses.empty();
  return was_never_heard ? kFirstCallSilences * options_.silence : options_.silence;
}

std::optional<ConnectionPool::Death> ConnectionPool::death(StreamTime now) const {
  if (is_refused() && now >= refusals_count_at()) {
    return Death{true, ports() + " is refused: nobody listens there any more"};
  }
  if (now - heard_ <= patience()) return std::nullopt;
  if (made_ == 0 && target_.addresses.empty()) {
    return Death{false,
                 "it has made no connection to this process, which cannot call it "
                 "(Q7X2_ADVERTISE). Is this process reached at its own address? If it is behind "
                 "NAT too, one of the two needs a port that leads to it"};
  }
  if (made_ == 0) {
    return Death{false, "no stream connection to it can be made: " + ports() +
                            (refusals_ > 0 ? " is refused" : " is not answered") +
                            " (by a firewall?). Open the port, or set Q7X2_STREAMS=0. If there is "
                            "NAT before that host, set Q7X2_ADVERTISE there" +
                            (target_.may_be_relayed ? "; both are behind NAT, so a port must lead "
                                                      "to one of them, or both need Q7X2_RELAY"
                                                    : "")};
  }
  char limit[64];
  std::snprintf(limit, sizeof(limit), " for %.1f s (Q7X2_SILENCE)",
                std::chrono::duration<double>(options_.silence).count());
  return Death{false,
               (connections_.empty() ? "its stream connections broke, and no other could be made"
                                     : "its host, or the link to it, has not answered") +
                   std::string(limit)};
}

/// Where the other process is called, for people.
std::string ConnectionPool::ports() const {
  std::string text = "TCP to ";
  for (const StreamAddress& each : target_.addresses) {
    if (&each != &target_.addresses.front()) text += " and ";
    text += (each.relay ? "the relay " : "") + each.endpoint.text();
  }
  return text;
}

}  // namespace q7x2
