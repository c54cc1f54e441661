#include "transport/peer/bootstrap_table.h"

#include <algorithm>
#include <new>
#include <string_view>

#include "base/error.h"
#include "fabric/host.h"

namespace q7x2 {
namespace {

constexpr unsigned kBootstrapId = 2;  // ControlPlane has 0 and 1

size_t bytes_of(const BootstrapMessage& message) {
  return sizeof(message) + message.body.size() + message.peer_info.size() + message.members.size() +
         message.text.size();
}

/// Whether a member in the attempt of `own` has to leave it: the sender has failed in it, and is in
/// a later one.
bool leads_to(const BootstrapMessage& message, const BootstrapMessage& own) {
  return message.attempt > own.attempt && message.failed_since <= own.attempt;
}

}  // namespace

// ---------------------------------------------------------------------------------------- inbox

void BootstrapInbox::put(BootstrapMessage message) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    messages_.push_back(std::move(message));
  }
  changed_.notify_one();
}

std::vector<BootstrapMessage> BootstrapInbox::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(messages_, {});
}

void BootstrapInbox::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return !messages_.empty(); });
}

// ---------------------------------------------------------------------------------------- table

BootstrapTable::BootstrapTable(uint64_t process, Reactor& reactor, PeerTable& peers,
                               Envelopes& envelopes)
    : process_(process), reactor_(reactor), peers_(peers), envelopes_(envelopes) {
  reactor_.on_message(kBootstrapId, on_message, this);
  if (StreamLane* const lane = reactor_.streams()) {
    lane->on_notice(kBootstrapId, [this](StreamNotice notice) {
      if (notice.turn == StreamNotice::Turn::kAgain) return;
      arrived_.push_back({notice.process, std::move(notice.text)});
    });
  }
}

bool BootstrapTable::begin(Locked&, const BootstrapMessage& stamp, BootstrapInbox& inbox) {
  if (used_.contains(stamp.key) || running_.contains(stamp.key)) {
    return false;
  }
  start(stamp, inbox);
  return true;
}

bool BootstrapTable::begin_next(Locked&, BootstrapMessage& stamp, BootstrapInbox& inbox) {
  if (running_.contains(stamp.key)) {
    return false;
  }
  stamp.attempt = stamp.failed_since = 1;
  if (const auto used = used_.find(stamp.key); used != used_.end()) {
    const BootstrapMessage& last = used->second.answer;
    stamp.attempt = last.attempt + 1;
    const bool failed = last.kind == BootstrapKind::kFailure;
    stamp.failed_since = failed ? last.failed_since : stamp.attempt;
  }
  for (const Early& early : early_) {
    const BootstrapMessage& message = early.message;
    if (message.key == stamp.key && message.kind == BootstrapKind::kPieces &&
        leads_to(message, stamp)) {
      stamp.attempt = message.attempt;
    }
  }
  start(stamp, inbox);
  return true;
}

void BootstrapTable::start(const BootstrapMessage& stamp, BootstrapInbox& inbox) {
  running_[stamp.key] = {.stamp = stamp, .inbox = &inbox};
  std::deque<Early> others;
  for (Early& early : std::exchange(early_, {})) {
    if (early.message.key != stamp.key || early.message.attempt > stamp.attempt) {
      others.push_back(std::move(early));
      continue;
    }
    early_bytes_ -= bytes_of(early.message);
    if (early.message.attempt == stamp.attempt) inbox.put(std::move(early.message));
  }
  early_ = std::move(others);
}

void BootstrapTable::go_on(Locked&, const BootstrapMessage& stamp) {
  Running& running = running_.at(stamp.key);
  running.stamp = stamp;
  running.sent.clear();
}

void BootstrapTable::keep(Locked&, const std::string& key, const std::string& exchange, int round,
                          std::string sent) {
  running_.at(key).sent[{exchange, round}] = {.message = std::move(sent)};
}

void BootstrapTable::set_waiting(Locked&, const std::string& key, int member) {
  running_.at(key).waiting_for = member;
}

void BootstrapTable::end(Locked&, std::vector<uint64_t> heard, BootstrapMessage answer,
                         std::optional<BootstrapMessage> decision) {
  const std::string key = answer.key;
  const auto running = running_.find(key);
  SentPieces sent;
  if (answer.kind != BootstrapKind::kFailure) {
    sent = std::move(running->second.sent);
    std::erase(kept_, key);
    kept_.push_back(key);
  }
  running_.erase(running);
  used_[key] = {std::move(heard), std::move(answer), std::move(decision), std::move(sent)};
  if (kept_.size() > kMostKept) {
    used_[kept_.front()].sent.clear();
    kept_.pop_front();
  }
}

Peer* BootstrapTable::reach(Locked& locked, const PeerInfo& to) {
  if (host_key_.empty()) {
    host_key_ = host_key();
  }
  uint32_t incarnation = 0;
  if (const Peer* const known = peers_.find(locked, to.process)) {
    if (known->life.has_ended() || known->life.is_suspect()) {
      return nullptr;
    }
    incarnation = known->incarnation + (known->life.is_dead() ? 1 : 0);
  }
  Peer& peer = peers_.meet(locked, to, to.host_key == host_key_, incarnation);
  const bool is_reached =
      peer.relies_on_stream ? peers_.connect_stream(locked, peer) : peers_.connect(locked, peer);
  return is_reached ? &peer : nullptr;
}

bool BootstrapTable::send(Locked& locked, const PeerInfo& to, std::string_view message) {
  Peer* const peer = reach(locked, to);
  if (peer == nullptr) return false;
  if (peer->relies_on_stream) {
    reactor_.streams()->notify(*peer->stream, kBootstrapId, message);
    return true;
  }
  reactor_.send_payload(locked, peer->shared.endpoint(), kBootstrapId,
                        envelopes_.close(Envelopes::Kind::kBootstrap, to.identity(), message));
  return true;
}

// ----------------------------------------------------------------------------- what has arrived

// Sent eagerly, so the bytes are all here.
ucs_status_t BootstrapTable::on_message(void* arg, const void*, size_t, void* data, size_t length,
                                        const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return UCS_OK;
  }
  try {
    auto& table = *static_cast<BootstrapTable*>(arg);
    const std::string_view bytes(static_cast<const char*>(data), length);
    if (const auto opened = table.envelopes_.open(Envelopes::Kind::kBootstrap, bytes)) {
      table.arrived_.push_back({opened->sender, std::string(opened->message)});
    }
  } catch (const std::bad_alloc&) {
    // Lost. Who waits for it asks again.
  }
  return UCS_OK;
}

bool BootstrapTable::deliver(Locked& locked) {
  if (arrived_.empty()) {
    return false;
  }
  for (const auto& [sender, bytes] : std::exchange(arrived_, {})) {
    try {
      if (auto message = BootstrapMessage::decode(bytes); message && message->process == sender) {
        handle(locked, std::move(*message));
      }
    } catch (const std::bad_alloc&) {
      // The same.
    }
  }
  return true;
}

void BootstrapTable::handle(Locked& locked, BootstrapMessage message) {
  if (const auto running = running_.find(message.key); running != running_.end()) {
    const BootstrapMessage& stamp = running->second.stamp;
    if (message.kind == BootstrapKind::kAsk && message.attempt <= stamp.attempt) {
      answer(locked, running->second, message);
      return;
    }
    if (message.attempt == stamp.attempt || leads_to(message, stamp)) {
      running->second.inbox->put(std::move(message));
      return;
    }
  }
  const auto used = used_.find(message.key);
  if (used != used_.end() && message.attempt <= used->second.answer.attempt) {
    refuse(locked, used->second, message);
  } else if (message.kind == BootstrapKind::kPieces || message.kind == BootstrapKind::kFailure) {
    keep_early(std::move(message));
  }
}

void BootstrapTable::keep_early(BootstrapMessage message) {
  const Clock::time_point now = Clock::now();
  early_bytes_ += bytes_of(message);
  early_.push_back({std::move(message), now});
  while (early_.size() > kMostEarly || early_bytes_ > kMostEarlyBytes ||
         (!early_.empty() && now - early_.front().arrived > kEarlyAge)) {
    early_bytes_ -= bytes_of(early_.front().message);
    early_.pop_front();
  }
}

bool BootstrapTable::answer(Locked& locked, SentPieces& pieces, const BootstrapMessage& asked) {
  const auto found = pieces.find({asked.exchange, asked.round});
  if (found == pieces.end()) {
    return false;
  }
  Sent& sent = found->second;
  if (const auto now = Clock::now(); now >= sent.again_from) {
    sent.again_from = now + sent.pause;
    sent.pause *= 2;
    reply(locked, asked, sent.message);
  }
  return true;
}

void BootstrapTable::answer(Locked& locked, Running& running, const BootstrapMessage& asked) {
  if (answer(locked, running.sent, asked)) {
    return;
  }
  BootstrapMessage waiting = running.stamp;
  waiting.kind = BootstrapKind::kWaiting;
  waiting.exchange = asked.exchange;
  waiting.round = asked.round;
  waiting.subject = running.waiting_for;
  reply(locked, asked, waiting.encode());
}

// Only who has taken no part in the bootstrap can use its key unawares. Who has may have missed
// pieces, or how it ended, because the leader has died.
void BootstrapTable::refuse(Locked& locked, Used& used, const BootstrapMessage& message) {
  if (message.kind == BootstrapKind::kAsk) {
    const bool is_member =
        message.attempt == used.answer.attempt && message.list == used.answer.list;
    if (is_member && used.answer.kind == BootstrapKind::kFailure) {
      reply(locked, message, used.answer.encode());
    } else if (is_member) {
      answer(locked, used.sent, message);
    }
    return;
  }
  const bool took_part =
      std::find(used.heard.begin(), used.heard.end(), message.process) != used.heard.end();
  if (message.kind == BootstrapKind::kPieces && !took_part) {
    reply(locked, message, used.answer.encode());
  }
  const bool asks =
      message.kind == BootstrapKind::kReady || message.kind == BootstrapKind::kAskReady;
  if (asks && used.decision) reply(locked, message, used.decision->encode());
}

void BootstrapTable::reply(Locked& locked, const BootstrapMessage& to, std::string_view message) {
  try {
    const PeerInfo peer_info = PeerInfo::decode(to.peer_info);
    if (peer_info.process == to.process && peer_info.process != process_) {
      send(locked, peer_info, message);
    }
  } catch (const Error&) {
    // The sender cannot be reached. It has a deadline.
  }
}

}  // namespace q7x2
