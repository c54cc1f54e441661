#include "transport/shm/outbox.h"

#include <algorithm>
#include <cstring>

namespace q7x2 {
namespace {

// Descriptors per round, because the lock is held while they are filled.
constexpr int kRound = 4;

uint64_t numbered(uint32_t number, uint32_t low) {
  return uint64_t{number} << 32 | low;
}

}  // namespace

void Outbox::send(Locked& locked, Task& task, uint32_t token, int member, uint32_t tag,
                  const void* data, size_t length) {
  PendingRequest& pending =
      reactor_.new_request(locked, task, task.record(locked).requests, token,
                           doorbell_.resident(member).rank, /*is_receive=*/false, Wire::kMemory);
  reactor_.posted(locked, pending, [&] {
    at(member).messages.push_back({&pending, tag, static_cast<const std::byte*>(data), length});
  });
  progress(locked, member);
}

void Outbox::answer(Locked& locked, int member, DescriptorKind kind, uint32_t number) {
  if (at(member).has_left) return;
  HostMessage descriptor;
  descriptor.kind = kind;
  descriptor.tag = numbered(number, 0);
  at(member).answers.push_back(descriptor);
  progress(locked, member);
}

void Outbox::deliver(Locked& locked, int number, const HostMessage& descriptor) {
  Member& member = at(number);
  const auto name = static_cast<uint32_t>(descriptor.tag >> 32);
  const auto found =
      std::ranges::find(member.offered, name, [](const Transfer& each) { return each.number; });
  if (found == member.offered.end()) return;  // it has been cancelled
  if (descriptor.kind == DescriptorKind::kAcceptance) {
    member.accepted.splice(member.accepted.end(), member.offered, found);
    progress(locked, number);
  } else {
    // The message is longer than the receive; the receiver reports that.
    complete(locked, found->message);
    member.offered.erase(found);
  }
}

bool Outbox::progress(Locked& locked, int member) {
  int descriptors = 0;
  while (descriptors < kRound && post_next(locked, member)) ++descriptors;
  if (descriptors > 0) doorbell_.notify(locked, member);
  return descriptors > 0;
}

// Answers first, because other ranks wait for them.
bool Outbox::post_next(Locked& locked, int number) {
  Member& member = at(number);
  if (!member.answers.empty()) {
    if (!channel_.send(number, member.answers.front())) return false;
    member.answers.pop_front();
    return true;
  }
  if (!member.messages.empty()) return post_message(locked, number);
  return !member.accepted.empty() && post_piece(locked, number);
}

bool Outbox::post_message(Locked& locked, int number) {
  if (!channel_.has_room(number)) return false;
  Member& member = at(number);
  const Message message = member.messages.front();
  HostMessage descriptor;
  descriptor.tag = message.tag;
  if (message.length > channel_.place_bytes()) {
    member.offered.push_back({next_number_, message});
    descriptor.kind = DescriptorKind::kOffer;
    descriptor.tag = numbered(next_number_++, message.tag);
    const uint64_t length = message.length;
    descriptor.length = sizeof(length);
    std::memcpy(descriptor.carried.data(), &length, sizeof(length));
    channel_.send(number, descriptor);
    member.messages.pop_front();
    return true;
  }
  descriptor.kind = DescriptorKind::kWhole;
  if (message.length > ShmChannel::kInlineBytes) {
    if (!copy_to_place(number, descriptor, message.data, message.length)) return false;
  } else {
    descriptor.length = static_cast<uint32_t>(message.length);
    if (message.length > 0) std::memcpy(descriptor.carried.data(), message.data, message.length);
  }
  channel_.send(number, descriptor);
  member.messages.pop_front();
  complete(locked, message);
  return true;
}

bool Outbox::post_piece(Locked& locked, int number) {
  if (!channel_.has_room(number)) return false;
  std::list<Transfer>& accepted = at(number).accepted;
  Transfer& transfer = accepted.front();
  const Message& message = transfer.message;
  HostMessage descriptor;
  if (message.pending == nullptr) {
    descriptor.kind = DescriptorKind::kWithdrawal;
    descriptor.tag = numbered(transfer.number, 0);
    channel_.send(number, descriptor);
    accepted.pop_front();
    return true;
  }
  const size_t offset = transfer.next * channel_.place_bytes();
  const size_t length = std::min(channel_.place_bytes(), message.length - offset);
  descriptor.kind = DescriptorKind::kPiece;
  descriptor.tag = numbered(transfer.number, static_cast<uint32_t>(transfer.next));
  if (!copy_to_place(number, descriptor, message.data + offset, length)) return false;
  channel_.send(number, descriptor);
  ++transfer.next;
  if (offset + length == message.length) {
    complete(locked, message);
    accepted.pop_front();
  } else {
    accepted.splice(accepted.end(), accepted, accepted.begin());
  }
  return true;
}

bool Outbox::copy_to_place(int number, HostMessage& descriptor, const std::byte* data,
                           size_t length) {
  Member& member = at(number);
  const int place = member.next_place;
  if (!channel_.is_free(number, place)) return false;
  std::byte* const staged = channel_.place(number, place);
  std::memcpy(staged, data, length);
  descriptor.staged = staged;
  descriptor.length = static_cast<uint32_t>(length);
  descriptor.ticket = static_cast<uint16_t>(place);
  channel_.expect_return(number, place);
  member.next_place = (place + 1) % channel_.places();
  return true;
}

void Outbox::complete(Locked& locked, const Message& message) {
  reactor_.complete(locked, *message.pending, UCS_OK, message.length);
}

// Allocates no memory: there may be none left.
void Outbox::forget(Locked& locked, const Task& task, bool tells) {
  const auto is_its = [&](const Message& message) {
    return message.pending != nullptr && message.pending->task == &task;
  };
  for (int number = 0; number < channel_.members(); ++number) {
    Member& member = at(number);
    std::erase_if(member.messages, [&](const Message& message) {
      const bool found = is_its(message);
      if (found) reactor_.release(locked, *message.pending);
      return found;
    });
    for (std::list<Transfer>* list : {&member.offered, &member.accepted}) {
      for (auto next = list->begin(); next != list->end();) {
        const auto each = next++;
        if (!is_its(each->message)) continue;
        reactor_.release(locked, *each->message.pending);
        each->message.pending = nullptr;
        if (!tells || member.has_left) {
          list->erase(each);
        } else {
          member.accepted.splice(member.accepted.begin(), *list, each);
        }
      }
    }
  }
}

void Outbox::drop(Locked&, int number) {
  Member& member = at(number);
  member.has_left = true;
  member.answers.clear();
  std::erase_if(member.accepted,
                [](const Transfer& transfer) { return transfer.message.pending == nullptr; });
}

bool Outbox::is_waiting() const {
  return std::ranges::any_of(members_, [](const Member& member) {
    return !member.answers.empty() || !member.messages.empty() || !member.offered.empty() ||
           !member.accepted.empty();
  });
}

}  // namespace q7x2
