#include "transport/shm/shm_matcher.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

bool match(uint64_t tag, uint64_t other) {
  return ((tag ^ other) & ~tag::kSharedFingerprintMask) == 0;
}

}  // namespace

ShmMatcher::ShmMatcher(Reactor& reactor, ControlPlane& controls,
                       std::unique_ptr<ShmChannel> channel, const std::vector<Resident>& residents,
                       int world_size, OnUnexpected on_unexpected)
    : reactor_(reactor),
      channel_(std::move(channel)),
      on_unexpected_(std::move(on_unexpected)),
      doorbell_(controls, *channel_, residents),
      outbox_(reactor, *channel_, doorbell_),
      inbox_(reactor, *channel_, doorbell_, outbox_),
      member_at_(static_cast<size_t>(world_size), -1) {
  for (const Resident& each : residents) {
    const auto number = static_cast<int>(members_.size());
    if (channel_->is_open(number)) {
      member_at_[static_cast<size_t>(each.rank)] = number;
    }
    members_.emplace_back().rank = each.rank;
  }
}

bool ShmMatcher::send(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
                      const void* data, size_t length, int ticket) {
  const int number = member_at_[static_cast<size_t>(destination)];
  Member& member = members_[static_cast<size_t>(number)];
  ShmChannel::Message message;
  message.tag = tag;
  message.length = static_cast<uint32_t>(length);
  message.ticket = static_cast<uint16_t>(ticket);
  if (ticket != ShmChannel::kNoTicket) {
    message.staged = static_cast<const std::byte*>(data);
    channel_->expect_return(number, ticket);
  } else if (length > 0) {
    std::memcpy(message.carried.data(), data, length);
  }
  if (member.outgoing.empty() && channel_->send(number, message)) {
    doorbell_.wake(locked, number);
    return true;
  }
  PendingRequest& pending = reactor_.new_request(locked, task, task.record(locked).requests, token,
                                                 destination, /*is_receive=*/false);
  reactor_.posted(locked, pending, [&] { member.outgoing.push_back({message, &pending}); });
  return false;
}

std::optional<ShmChannel::Message> ShmMatcher::receive(Locked& locked, Task& task, uint32_t token,
                                                       int source, uint64_t tag) {
  Member& member = member_of(source);
  const auto found = std::find_if(member.unexpected.begin(), member.unexpected.end(),
                                  [&](const auto& message) { return match(message.tag, tag); });
  if (found != member.unexpected.end()) {
    ShmChannel::Message message = *found;
    member.unexpected.erase(found);
    return message;
  }
  PendingRequest& pending = reactor_.new_request(locked, task, task.record(locked).requests, token,
                                                 source, /*is_receive=*/true);
  reactor_.posted(locked, pending, [&] { member.expected.push_back({tag, &pending}); });
  return std::nullopt;
}

void ShmMatcher::release_message(Locked& locked, int source, const ShmChannel::Message& message) {
  if (message.ticket != ShmChannel::kNoTicket) {
    const int number = member_at_[static_cast<size_t>(source)];
    channel_->return_ticket(number, message.ticket);
    doorbell_.wake(locked, number);
  }
}

void ShmMatcher::send_message(Locked& locked, Task& task, uint32_t token, int destination,
                              uint32_t tag, const void* data, size_t length) {
  has_messages_ = true;
  outbox_.send(locked, task, token, member_at_[static_cast<size_t>(destination)], tag, data,
               length);
}

bool ShmMatcher::receive_message(Locked& locked, PendingRequest& pending, int source, uint32_t tag,
                                 void* data, size_t length) {
  has_messages_ = true;
  const int member = source < 0 ? Inbox::kAnyMember : member_at_[static_cast<size_t>(source)];
  return inbox_.receive(locked, pending, member, tag, data, length);
}

void ShmMatcher::retire_staging(Locked& locked, ShmChannel::Staging staging,
                                std::vector<int> tickets) {
  retired_.push_back({staging, std::move(tickets)});
  free_returned(locked);
}

void ShmMatcher::free_returned(Locked&) {
  std::erase_if(retired_, [this](Retired& retired) {
    std::erase_if(retired.tickets, [this](int ticket) {
      const bool returned = channel_->is_returned(ticket);
      if (returned) {
        channel_->free_ticket(ticket);
      }
      return returned;
    });
    if (!retired.tickets.empty()) {
      return false;
    }
    channel_->free(retired.staging);
    return true;
  });
}

bool ShmMatcher::progress(Locked& locked) {
  bool any = false;
  for (int number = 0; number < channel_->members(); ++number) {
    if (!channel_->is_open(number)) continue;
    if (channel_->has_descriptors(number)) {
      take_from(locked, number);
      any = true;
    }
    any |= send_to(locked, number);
    any |= outbox_.progress(locked, number);
  }
  return any;
}

// A group that has never had messages of the user does without the memory fence, and does not poll.
void ShmMatcher::start_polling(Locked&) {
  if (has_messages_) channel_->start_polling();
}

bool ShmMatcher::stop_polling(Locked&) {
  if (!has_messages_) return true;
  channel_->stop_polling();
  return !channel_->has_descriptors();
}

void ShmMatcher::hear_ring(Locked&) {
  if (!channel_->is_polled()) channel_->stop_polling();
}

void ShmMatcher::take_from(Locked& locked, int number) {
  size_t count = 0;
  for (; count < ShmChannel::kDescriptors; ++count) {
    const auto message = channel_->take(number);
    if (!message) return;
    deliver(locked, number, *message);
  }
  // The mailbox may have been full, and its sender may sleep until there is room.
  doorbell_.wake(locked, number);
}

void ShmMatcher::deliver(Locked& locked, int number, const ShmChannel::Message& message) {
  switch (message.kind) {
    case DescriptorKind::kCollective:
      dispatch(locked, members_[static_cast<size_t>(number)], message);
      return;
    case DescriptorKind::kAcceptance:
    case DescriptorKind::kRefusal:
      outbox_.deliver(locked, number, message);
      break;
    default:
      inbox_.deliver(locked, number, message);
  }
  has_messages_ = true;
}

bool ShmMatcher::send_to(Locked& locked, int number) {
  std::deque<Outgoing>& outgoing = members_[static_cast<size_t>(number)].outgoing;
  if (outgoing.empty()) return false;
  bool any = false;
  while (!outgoing.empty() && channel_->send(number, outgoing.front().message)) {
    any = true;
    const Outgoing& out = outgoing.front();
    reactor_.complete(locked, *out.send, UCS_OK, out.message.length, out.message.tag);
    outgoing.pop_front();
    doorbell_.wake(locked, number);
  }
  return any;
}

void ShmMatcher::dispatch(Locked& locked, Member& member, const ShmChannel::Message& message) {
  const auto found =
      std::find_if(member.expected.begin(), member.expected.end(),
                   [&](const Expected& expected) { return match(message.tag, expected.tag); });
  if (found == member.expected.end()) {
    if (on_unexpected_(locked, message.tag, member.rank)) {
      member.unexpected.push_back(message);
    } else {
      release_message(locked, member.rank, message);
    }
    return;
  }
  PendingRequest& pending = *found->receive;
  member.expected.erase(found);
  Task& task = *pending.task;
  const uint32_t token = pending.token;
  reactor_.release(locked, pending);
  task.record(locked).has_moved = true;
  task.record(locked).traffic.received_memory += message.length;
  task.after_wait(locked, member.rank, [&] { task.arrived(locked, token, message); });
}

bool ShmMatcher::expects_mail(Locked&) const {
  return outbox_.is_waiting() || inbox_.is_waiting() ||
         std::any_of(members_.begin(), members_.end(), [](const Member& member) {
           return !member.expected.empty() || !member.outgoing.empty();
         });
}

void ShmMatcher::drop(Locked& locked, int rank) {
  if (!serves(rank)) return;
  outbox_.drop(locked, member_at_[static_cast<size_t>(rank)]);
  inbox_.drop(locked, member_at_[static_cast<size_t>(rank)]);
}

void ShmMatcher::drop_collective(Locked& locked, uint64_t sequence, int rank) {
  for (Member& member : members_) {
    if (rank >= 0 && member.rank != rank) continue;
    std::erase_if(member.unexpected, [&](const ShmChannel::Message& message) {
      const bool is_its = tag::sequence_of(message.tag) == sequence;
      if (is_its) release_message(locked, member.rank, message);
      return is_its;
    });
  }
}

void ShmMatcher::forget(Locked& locked, const Task& task, bool tells) {
  outbox_.forget(locked, task, tells);
  inbox_.forget(locked, task);

  const auto is_its = [&](PendingRequest* pending) {
    const bool found = pending->task == &task;
    if (found) {
      reactor_.release(locked, *pending);
    }
    return found;
  };
  for (Member& member : members_) {
    std::erase_if(member.expected, [&](const Expected& each) { return is_its(each.receive); });
    std::erase_if(member.outgoing, [&](const Outgoing& each) {
      const bool is_its_own = is_its(each.send);
      if (is_its_own && each.message.ticket != ShmChannel::kNoTicket) {
        channel_->expect_no_return(member_at_[static_cast<size_t>(member.rank)],
                                   each.message.ticket);
      }
      return is_its_own;
    });
  }
}

}  // namespace q7x2
