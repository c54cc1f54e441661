// The messages that a rank receives and sends in a step.
#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "late/quorum.h"

namespace q7x2 {
namespace {

constexpr size_t kUsual = 16;  // number of contributions from which the usual time is estimated

}  // namespace

int64_t Quorum::held() const {
  int64_t mask = 0;
  for (const auto& [key, each] : contributions_) {
    if (key.first == step_) mask |= int64_t{1} << key.second;
  }
  return mask;
}

bool Quorum::is_enough(int64_t mask) {
  if (!enough_ || enough_->first != mask) enough_ = {mask, settings_.is_enough(mask)};
  return enough_->second;
}

void Quorum::receive(double seconds) {
  if (const std::optional<PeerMessage> message = mail_->receive_within(seconds)) hear(*message);
}

void Quorum::hear(const PeerMessage& message) {
  const auto head = std::bit_cast<Header>([&] {
    std::array<int64_t, kWidth> numbers{};
    std::ranges::copy(message.header, numbers.begin());
    return numbers;
  }());
  const int sender = message.sender;
  heard_[sender] = std::max(heard_[sender], head.at);
  switch (head.kind) {
    case Header::kContribution:
      take(head, message);
      break;
    case Header::kAsk:
      hear_ask(sender, head.step);
      break;
    case Header::kDecided:
      if (head.step == step_) vote_.decide({.mask = head.mask, .leader = head.leader});
      break;
    case Header::kNeed:
      if (head.step == step_) need_[sender] = head.mask;
      break;
    case Header::kWant:
      if (head.step < step_) wanting_.insert(sender);
      break;
    case Header::kState:
      if (message.payload.size > 0 && head.step > step_ &&
          (!arrived_ || head.step > arrived_->step)) {
        arrived_ = {
            .step = head.step, .leader = static_cast<int>(head.leader), .data = message.payload};
      }
      break;
    case Header::kDone:
      done_.insert(sender);
      break;
    default:
      hear_ballot(head, message);
  }
}

void Quorum::hear_ask(int sender, int64_t step) {
  if (step == step_) {
    say(vote_.repeat(sender));
  } else if (const auto found = decided_.find(step); step < step_ && found != decided_.end()) {
    const VoteValue& value = found->second;
    post(sender,
         {.kind = Header::kDecided, .step = step, .mask = value.mask, .leader = value.leader});
  }
}

void Quorum::hear_ballot(const Header& head, const PeerMessage& message) {
  if (head.step == step_) {
    say(vote_.hear(message.sender,
                   {.kind = static_cast<Ballot::Kind>(head.kind),
                    .ballot = head.ballot,
                    .value = {.mask = head.mask, .leader = head.leader},
                    .accepted = head.accepted},
                   held()));
  } else if (head.step == step_ + 1) {
    early_.push_back(message);
  }
}

void Quorum::take(const Header& head, const PeerMessage& message) {
  const size_t bytes = message.payload.size;
  if (bytes < settings_.least_bytes || bytes > settings_.most_bytes) {
    throw std::runtime_error("rank " + std::to_string(message.sender) + " sent a contribution of " +
                             std::to_string(bytes) + " bytes, expected " +
                             std::to_string(settings_.least_bytes) + " to " +
                             std::to_string(settings_.most_bytes));
  }
  if (head.step != step_ && head.step != step_ + 1) return;
  if (head.origin < 0 || head.origin >= mail_->world_size()) return;
  contributions_.try_emplace({head.step, static_cast<int>(head.origin)},
                             Contribution{message.payload, std::bit_cast<double>(head.weight)});
  delays_.push_back(head.step == step_ ? now() - begun_ : 0.0);
  if (delays_.size() > kUsual) delays_.pop_front();
}

// Sends contributions to the ranks that take them now.
void Quorum::offer() {
  for (const auto& [step, mine] : own_) {
    for (const int peer : mail_->peers()) {
      const bool is_near = heard_[peer] >= step - 1;
      if (is_near && !sent_[step].contains(peer) && !mail_->is_loading(peer)) {
        sent_[step].insert(peer);
        give(peer, step, mail_->rank(), mine);
      }
    }
  }
  for (auto& [peer, mask] : need_) {
    for (int rank = 0; rank < mail_->world_size(); ++rank) {
      const auto found = contributions_.find({step_, rank});
      if ((mask >> rank & 1) == 0 || found == contributions_.end()) continue;
      if (mail_->is_loading(peer)) continue;
      mask &= ~(int64_t{1} << rank);
      give(peer, step_, rank, found->second);
    }
  }
}

void Quorum::give_state() {
  for (const int peer : wanting_) {
    post(peer, {.kind = Header::kState, .step = step_, .leader = vote_.leader()},
         settings_.state());
    heard_[peer] = std::max(heard_[peer], step_);
  }
  wanting_.clear();
}

void Quorum::give(int peer, int64_t step, int origin, const Contribution& what) {
  post(peer,
       {.kind = Header::kContribution,
        .step = step,
        .origin = origin,
        .weight = std::bit_cast<int64_t>(what.weight)},
       what.data);
}

void Quorum::say(const Vote::Ballots& ballots) {
  for (const Ballot& each : ballots) {
    const Header header{.kind = static_cast<int64_t>(each.kind),
                        .step = step_,
                        .ballot = each.ballot,
                        .accepted = each.accepted,
                        .mask = each.value.mask,
                        .leader = each.value.leader};
    if (each.to != Ballot::kAll) {
      post(each.to, header);
      continue;
    }
    for (const int peer : mail_->peers()) post(peer, header);
  }
}

void Quorum::post(int peer, const Header& header, const Bytes& payload) {
  Header stamped = header;
  stamped.at = step_;
  mail_->send(peer, std::bit_cast<std::array<int64_t, kWidth>>(stamped), payload);
}

}  // namespace q7x2
