#include "transport/mailroom.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/tag.h"

namespace q7x2 {
namespace {

bool match(uint64_t tag, uint64_t other) {
  return ((tag ^ other) & ~tag::kSharedFingerprintMask) == 0;
}

}  // namespace

Mailroom::Mailroom(Reactor& reactor, ControlPlane& controls, std::unique_ptr<HostChannel> channel,
                   const std::vector<Resident>& residents, int world_size,
                   OnUnexpected on_unexpected)
    : reactor_(reactor),
      controls_(controls),
      channel_(std::move(channel)),
      on_unexpected_(std::move(on_unexpected)),
      member_at_(static_cast<size_t>(world_size), -1) {
  for (const Resident& each : residents) {
    const auto number = static_cast<int>(members_.size());
    if (channel_->is_open(number)) {
      member_at_[static_cast<size_t>(each.rank)] = number;
    }
    members_.emplace_back().who = each;
  }
}

// A request that is not posted never completes, and its task would wait for it.
template <typename Post>
void Mailroom::post(Locked& locked, PendingRequest& pending, const Post& enqueue) {
  try {
    enqueue();
  } catch (...) {
    reactor_.release(locked, pending);
    throw;
  }
}

bool Mailroom::send(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
                    const void* data, size_t length, int ticket) {
  const int number = member_at_[static_cast<size_t>(destination)];
  Member& member = members_[static_cast<size_t>(number)];
  HostChannel::Message message;
  message.tag = tag;
  message.length = static_cast<uint32_t>(length);
  message.ticket = static_cast<uint16_t>(ticket);
  if (ticket != HostChannel::kNoTicket) {
    message.staged = static_cast<const std::byte*>(data);
    channel_->expect_return(number, ticket);
  } else if (length > 0) {
    std::memcpy(message.carried.data(), data, length);
  }
  if (member.outgoing.empty() && channel_->send(number, message)) {
    wake(locked, number);
    return true;
  }
  PendingRequest& pending = reactor_.new_request(locked, task, task.record(locked).requests, token,
                                                 destination, /*is_receive=*/false);
  post(locked, pending, [&] { member.outgoing.push_back({message, &pending}); });
  return false;
}

std::optional<HostChannel::Message> Mailroom::receive(Locked& locked, Task& task, uint32_t token,
                                                      int source, uint64_t tag) {
  Member& member = member_of(source);
  const auto found = std::find_if(member.unexpected.begin(), member.unexpected.end(),
                                  [&](const auto& message) { return match(message.tag, tag); });
  if (found != member.unexpected.end()) {
    HostChannel::Message message = *found;
    member.unexpected.erase(found);
    return message;
  }
  PendingRequest& pending = reactor_.new_request(locked, task, task.record(locked).requests, token,
                                                 source, /*is_receive=*/true);
  post(locked, pending, [&] { member.expected.push_back({tag, &pending}); });
  return std::nullopt;
}

void Mailroom::release_message(Locked& locked, int source, const HostChannel::Message& message) {
  if (message.ticket != HostChannel::kNoTicket) {
    const int number = member_at_[static_cast<size_t>(source)];
    channel_->return_ticket(number, message.ticket);
    wake(locked, number);
  }
}

void Mailroom::wake(Locked& locked, int number) {
  if (channel_->must_wake(number)) {
    Peer& peer = *members_[static_cast<size_t>(number)].who.peer;
    if (peer.shared.is_open() && peer.life.is_alive()) {
      controls_.wake(locked, peer);
    }
  }
}

void Mailroom::retire_staging(Locked& locked, HostChannel::Staging staging,
                              std::vector<int> tickets) {
  retired_.push_back({staging, std::move(tickets)});
  free_returned(locked);
}

void Mailroom::free_returned(Locked&) {
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

bool Mailroom::progress(Locked& locked) {
  bool any = false;
  for (int number = 0; number < channel_->members(); ++number) {
    if (!channel_->is_open(number)) continue;
    if (channel_->has_letter(number)) {
      take_from(locked, number);
      any = true;
    }
    any |= send_to(locked, number);
  }
  return any;
}

void Mailroom::take_from(Locked& locked, int number) {
  size_t count = 0;
  while (const auto message = channel_->take(number)) {
    ++count;
    dispatch(locked, members_[static_cast<size_t>(number)], *message);
  }
  // The mailbox may have been full. Then its sender may sleep until there is room.
  if (count >= HostChannel::kLetters) {
    wake(locked, number);
  }
}

bool Mailroom::send_to(Locked& locked, int number) {
  std::deque<Outgoing>& outgoing = members_[static_cast<size_t>(number)].outgoing;
  if (outgoing.empty()) return false;
  bool any = false;
  while (!outgoing.empty() && channel_->send(number, outgoing.front().message)) {
    any = true;
    const Outgoing& out = outgoing.front();
    reactor_.complete(locked, *out.send, UCS_OK, out.message.length, out.message.tag);
    outgoing.pop_front();
    wake(locked, number);
  }
  return any;
}

void Mailroom::dispatch(Locked& locked, Member& member, const HostChannel::Message& message) {
  const auto found =
      std::find_if(member.expected.begin(), member.expected.end(),
                   [&](const Expected& expected) { return match(message.tag, expected.tag); });
  if (found == member.expected.end()) {
    member.unexpected.push_back(message);
    on_unexpected_(locked, message.tag, member.who.rank);
    return;
  }
  PendingRequest& pending = *found->receive;
  member.expected.erase(found);
  Task& task = *pending.task;
  const uint32_t token = pending.token;
  reactor_.release(locked, pending);
  task.record(locked).has_moved = true;
  task.record(locked).traffic.received_memory += message.length;
  task.after_wait(locked, member.who.rank, [&] { task.arrived(locked, token, message); });
}

int Mailroom::deaf_rank(Locked&) const {
  for (int number = 0; number < channel_->members(); ++number) {
    if (channel_->is_deaf(number)) return members_[static_cast<size_t>(number)].who.rank;
  }
  return -1;
}

bool Mailroom::expects_mail(Locked&) const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return !member.expected.empty() || !member.outgoing.empty();
  });
}

void Mailroom::forget(Locked& locked, const Task& task) {
  const auto is_its = [&](PendingRequest* pending) {
    const bool found = pending->task == &task;
    if (found) {
      reactor_.release(locked, *pending);
    }
    return found;
  };
  for (Member& member : members_) {
    std::erase_if(member.expected, [&](const Expected& each) { return is_its(each.receive); });
    std::erase_if(member.outgoing, [&](const Outgoing& each) { return is_its(each.send); });
  }
}

}  // namespace q7x2
