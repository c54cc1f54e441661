#include "transport/shm/inbox.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, size_t length) {
  if (length > 0) std::memcpy(to, from, length);
}

uint32_t number_of(const HostMessage& descriptor) {
  return static_cast<uint32_t>(descriptor.tag >> 32);
}

uint64_t offered_length(const HostMessage& descriptor) {
  uint64_t length = 0;
  if (descriptor.staged != nullptr || descriptor.length != sizeof(length)) {
    throw Error(ErrorCode::kTransport, "an offer in shared memory has no length");
  }
  std::memcpy(&length, descriptor.carried.data(), sizeof(length));
  return length;
}

}  // namespace

bool Inbox::receive(Locked& locked, PendingRequest& pending, int member, uint32_t tag, void* data,
                    size_t length) {
  const Expected receive{&pending, member, tag, static_cast<std::byte*>(data), length};
  const auto found = std::ranges::find_if(arrived_, [&](const Arrived& arrived) {
    return arrived.tag == tag && (member == kAnyMember || arrived.member == member);
  });
  if (found == arrived_.end()) {
    reactor_.posted(locked, pending, [&] { expected_.push_back(receive); });
    pending.in_inbox = true;
    return false;
  }
  const Arrived arrived = std::move(*found);
  arrived_.erase(found);
  if (arrived.bytes == nullptr) {
    accept(locked, receive, arrived.member, arrived.number, arrived.length);
  } else {
    copy_bytes(receive.data, arrived.bytes.get(), std::min(arrived.length, length));
    complete(locked, receive, arrived.member, arrived.length);
  }
  return true;
}

void Inbox::deliver(Locked& locked, int member, const HostMessage& descriptor) {
  switch (descriptor.kind) {
    case DescriptorKind::kPiece:
      take_piece(locked, member, descriptor);
      break;
    case DescriptorKind::kWithdrawal:
      withdraw(locked, member, number_of(descriptor));
      break;
    default:
      take_message(locked, member, descriptor);
  }
  if (descriptor.ticket != ShmChannel::kNoTicket) {
    channel_.return_ticket(member, descriptor.ticket);
    doorbell_.wake(locked, member);
  }
}

/// The receive that matches a message of `member`; it no longer waits.
std::optional<Inbox::Expected> Inbox::claim(Locked& locked, int member, uint32_t tag) {
  for (auto each = expected_.begin(); each != expected_.end();) {
    if (each->tag != tag || (each->member != kAnyMember && each->member != member)) {
      ++each;
      continue;
    }
    const Expected receive = *each;
    PendingRequest& pending = *receive.pending;
    each = expected_.erase(each);
    pending.in_inbox = false;
    if (pending.completed) continue;  // a rival has a message
    if (reactor_.win(locked, pending)) return receive;
    reactor_.complete(locked, pending, UCS_ERR_CANCELED);
  }
  return std::nullopt;
}

void Inbox::take_message(Locked& locked, int member, const HostMessage& descriptor) {
  const auto tag = static_cast<uint32_t>(descriptor.tag);
  const bool is_offer = descriptor.kind == DescriptorKind::kOffer;
  const size_t length = is_offer ? offered_length(descriptor) : descriptor.length;
  if (const auto receive = claim(locked, member, tag)) {
    if (is_offer) {
      accept(locked, *receive, member, number_of(descriptor), length);
    } else {
      copy_bytes(receive->data, descriptor.data(), std::min(length, receive->room));
      complete(locked, *receive, member, length);
    }
    return;
  }
  Arrived arrived{member, tag, length, nullptr, number_of(descriptor)};
  if (!is_offer) {
    arrived.bytes.reset(new std::byte[std::max<size_t>(length, 1)]);
    copy_bytes(arrived.bytes.get(), descriptor.data(), length);
  }
  arrived_.push_back(std::move(arrived));
}

void Inbox::accept(Locked& locked, const Expected& receive, int member, uint32_t number,
                   size_t length) {
  const bool fits = length <= receive.room;
  reactor_.posted(locked, *receive.pending, [&] {
    outbox_.answer(locked, member, fits ? DescriptorKind::kAcceptance : DescriptorKind::kRefusal,
                   number);
    if (fits) incoming_.insert_or_assign(Key{member, number}, Incoming{receive, length});
  });
  receive.pending->peer = doorbell_.resident(member).rank;  // whom it waits for from now on
  if (!fits) complete(locked, receive, member, length);
}

void Inbox::take_piece(Locked& locked, int member, const HostMessage& descriptor) {
  const auto found = incoming_.find({member, number_of(descriptor)});
  if (found == incoming_.end()) return;  // its receive has been cancelled
  Incoming& incoming = found->second;
  const size_t offset = static_cast<uint32_t>(descriptor.tag) * channel_.place_bytes();
  if (offset > incoming.length || descriptor.length > incoming.length - offset) {
    throw Error(ErrorCode::kTransport, "a piece in shared memory does not belong to its message");
  }
  copy_bytes(incoming.receive.data + offset, descriptor.data(), descriptor.length);
  incoming.received += descriptor.length;
  if (incoming.received >= incoming.length) {
    const Incoming whole = incoming;
    incoming_.erase(found);
    complete(locked, whole.receive, member, whole.length);
  }
}

void Inbox::withdraw(Locked& locked, int member, uint32_t number) {
  std::erase_if(arrived_, [&](const Arrived& arrived) {
    return arrived.bytes == nullptr && arrived.member == member && arrived.number == number;
  });
  const auto found = incoming_.find({member, number});
  if (found == incoming_.end()) return;
  const Incoming incoming = found->second;
  incoming_.erase(found);
  Task& task = *incoming.receive.pending->task;
  reactor_.release(locked, *incoming.receive.pending);
  const int rank = doorbell_.resident(member).rank;
  task.fail(locked,
            Error(ErrorCode::kAborted,
                  task.name() + ": rank " + std::to_string(rank) +
                      " has given up this message after " + std::to_string(incoming.received) +
                      " of " + std::to_string(incoming.length) + " bytes",
                  rank));
}

void Inbox::complete(Locked& locked, const Expected& receive, int member, size_t length) {
  const int rank = doorbell_.resident(member).rank;
  receive.pending->wire = Wire::kMemory;
  receive.pending->peer = rank;
  reactor_.complete(locked, *receive.pending,
                    length > receive.room ? UCS_ERR_MESSAGE_TRUNCATED : UCS_OK, length,
                    tag::point_to_point(0, rank, receive.tag));
}

void Inbox::drop(Locked&, int member) {
  std::erase_if(arrived_, [&](const Arrived& arrived) {
    return arrived.bytes == nullptr && arrived.member == member;
  });
}

void Inbox::forget(Locked& locked, const Task& task) {
  std::erase_if(expected_, [&](const Expected& receive) {
    const bool found = receive.pending->task == &task;
    if (found) receive.pending->in_inbox = false;
    if (found && !receive.pending->completed) reactor_.release(locked, *receive.pending);
    return found;
  });
  std::erase_if(incoming_, [&](const auto& each) {
    const bool found = each.second.receive.pending->task == &task;
    if (found) reactor_.release(locked, *each.second.receive.pending);
    return found;
  });
}

void Inbox::forget(Locked&, PendingRequest& pending) {
  std::erase_if(expected_, [&](const Expected& each) { return each.pending == &pending; });
  pending.in_inbox = false;
}

}  // namespace q7x2
