#include "transport/bootstrap/assembly_table.h"

#include <algorithm>
#include <new>
#include <string_view>

#include "base/error.h"
#include "fabric/host.h"

namespace q7x2 {
namespace {

constexpr unsigned kAssemblyId = 2;  // ControlPlane has 0 and 1

size_t bytes_of(const AssemblyMessage& message) {
  return sizeof(message) + message.body.size() + message.peer_info.size() + message.members.size() +
         message.text.size();
}

}  // namespace

// ---------------------------------------------------------------------------------------- inbox

void AssemblyInbox::put(AssemblyMessage message) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    messages_.push_back(std::move(message));
  }
  changed_.notify_one();
}

std::vector<AssemblyMessage> AssemblyInbox::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(messages_, {});
}

void AssemblyInbox::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return !messages_.empty(); });
}

// ---------------------------------------------------------------------------------------- table

AssemblyTable::AssemblyTable(uint64_t process, Reactor& reactor, PeerTable& peers,
                             Envelopes& envelopes)
    : process_(process), reactor_(reactor), peers_(peers), envelopes_(envelopes) {
  reactor_.on_message(kAssemblyId, on_message, this);
}

bool AssemblyTable::begin(Locked&, const AssemblyMessage& stamp, AssemblyInbox& inbox) {
  if (used_.contains(stamp.key) || running_.contains(stamp.key)) {
    return false;
  }
  running_[stamp.key] = {.stamp = stamp, .inbox = &inbox};
  std::deque<Early> others;
  for (Early& early : std::exchange(early_, {})) {
    if (early.message.key == stamp.key) {
      early_bytes_ -= bytes_of(early.message);
      inbox.put(std::move(early.message));
    } else {
      others.push_back(std::move(early));
    }
  }
  early_ = std::move(others);
  return true;
}

void AssemblyTable::keep(Locked&, const std::string& key, const std::string& exchange, int round,
                         std::string sent) {
  running_.at(key).sent[{exchange, round}] = {.message = std::move(sent)};
}

void AssemblyTable::set_waiting(Locked&, const std::string& key, int member) {
  running_.at(key).waiting_for = member;
}

void AssemblyTable::end(Locked&, std::vector<uint64_t> heard, AssemblyMessage answer,
                        std::optional<AssemblyMessage> decision) {
  const std::string key = answer.key;
  running_.erase(key);
  used_[key] = {std::move(heard), std::move(answer), std::move(decision)};
}

bool AssemblyTable::send(Locked& locked, const PeerInfo& to, std::string_view message) {
  if (host_key_.empty()) {
    host_key_ = host_key();
  }
  uint32_t incarnation = 0;
  if (const Peer* const known = peers_.find(locked, to.process)) {
    if (known->life.has_ended() || known->life.is_suspect()) {
      return false;
    }
    incarnation = known->incarnation + (known->life.is_dead() ? 1 : 0);
  }
  Peer& peer = peers_.meet(locked, to, to.host_key == host_key_, incarnation);
  if (!peers_.connect(locked, peer)) {
    return false;
  }
  reactor_.send_payload(locked, peer.shared.endpoint(), kAssemblyId,
                        envelopes_.close(Envelopes::Kind::kAssembly, to.identity(), message));
  return true;
}

// ----------------------------------------------------------------------------- what has arrived

// Sent eagerly, so the bytes are all here.
ucs_status_t AssemblyTable::on_message(void* arg, const void*, size_t, void* data, size_t length,
                                       const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return UCS_OK;
  }
  try {
    auto& table = *static_cast<AssemblyTable*>(arg);
    const std::string_view bytes(static_cast<const char*>(data), length);
    if (const auto opened = table.envelopes_.open(Envelopes::Kind::kAssembly, bytes)) {
      table.arrived_.push_back({opened->sender, std::string(opened->message)});
    }
  } catch (const std::bad_alloc&) {
    // Lost. Who waits for it asks again.
  }
  return UCS_OK;
}

bool AssemblyTable::deliver(Locked& locked) {
  if (arrived_.empty()) {
    return false;
  }
  for (const auto& [sender, bytes] : std::exchange(arrived_, {})) {
    try {
      if (auto message = AssemblyMessage::decode(bytes); message && message->process == sender) {
        handle(locked, std::move(*message));
      }
    } catch (const std::bad_alloc&) {
      // The same.
    }
  }
  return true;
}

void AssemblyTable::handle(Locked& locked, AssemblyMessage message) {
  if (const auto running = running_.find(message.key); running != running_.end()) {
    if (message.kind == AssemblyKind::kAsk) {
      answer(locked, running->second, message);
    } else {
      running->second.inbox->put(std::move(message));
    }
  } else if (const auto used = used_.find(message.key); used != used_.end()) {
    refuse(locked, used->second, message);
  } else if (message.kind == AssemblyKind::kPieces || message.kind == AssemblyKind::kFailure) {
    keep_early(std::move(message));
  }
}

void AssemblyTable::keep_early(AssemblyMessage message) {
  const Clock::time_point now = Clock::now();
  early_bytes_ += bytes_of(message);
  early_.push_back({std::move(message), now});
  while (early_.size() > kMostEarly || early_bytes_ > kMostEarlyBytes ||
         (!early_.empty() && now - early_.front().arrived > kEarlyAge)) {
    early_bytes_ -= bytes_of(early_.front().message);
    early_.pop_front();
  }
}

void AssemblyTable::answer(Locked& locked, Running& running, const AssemblyMessage& asked) {
  const auto found = running.sent.find({asked.exchange, asked.round});
  if (found != running.sent.end()) {
    Sent& sent = found->second;
    if (const auto now = Clock::now(); now >= sent.again_from) {
      sent.again_from = now + sent.pause;
      sent.pause *= 2;
      reply(locked, asked, sent.message);
    }
    return;
  }
  AssemblyMessage waiting = running.stamp;
  waiting.kind = AssemblyKind::kWaiting;
  waiting.exchange = asked.exchange;
  waiting.round = asked.round;
  waiting.subject = running.waiting_for;
  reply(locked, asked, waiting.encode());
}

// Only who has taken no part in the assembly can use its key unawares. Who has may have missed how
// it ended, because the leader has died.
void AssemblyTable::refuse(Locked& locked, const Used& used, const AssemblyMessage& message) {
  const bool took_part =
      std::find(used.heard.begin(), used.heard.end(), message.process) != used.heard.end();
  if (message.kind == AssemblyKind::kPieces && !took_part) {
    reply(locked, message, used.answer.encode());
  }
  const bool asks = message.kind == AssemblyKind::kReady || message.kind == AssemblyKind::kAskReady;
  if (asks && used.decision) reply(locked, message, used.decision->encode());
}

void AssemblyTable::reply(Locked& locked, const AssemblyMessage& to, std::string_view message) {
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
