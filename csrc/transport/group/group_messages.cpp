#include "transport/group/group_messages.h"

#include <algorithm>

#include "transport/group/departure.h"
#include "transport/group/group_host.h"
#include "transport/group/group_links.h"
#include "transport/group/turn_queue.h"
#include "transport/peer/peer_table.h"
#include "transport/ucx/tag.h"

namespace q7x2 {

GroupMessages::GroupMessages(int slot, const Membership& members, const Departure& departure,
                             GroupLinks& links, const TurnQueue& turns)
    : slot_(slot),
      members_(members),
      departure_(departure),
      links_(links),
      turns_(turns),
      memory_refusals_(static_cast<size_t>(members.world_size())) {}

void GroupMessages::send(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
                         const void* data, size_t length, Wire wire, MemoryKind kind) {
  if (departure_.has_left(destination)) {
    task.stranded(locked, left_error(members_, destination, task.name()));
    return;
  }
  Reactor& reactor = locked.reactor();
  Peer& peer = members_.peer(destination);
  wire = carrier(wire, destination);
  const bool is_reached = connect(locked, destination, wire);
  // Everything that may throw comes first: a request that is never posted would never complete.
  PendingRequest& pending = reactor.new_request(locked, task, task.record(locked).requests, token,
                                                destination, /*is_receive=*/false, wire);
  if (!is_reached) {
    reactor.complete(locked, pending, UCS_ERR_UNREACHABLE);
    return;
  }
  Traffic& traffic = task.record(locked).traffic;
  // From device to device of one host.
  const bool stays_here = kind != MemoryKind::kHost && members_.same_host(destination);
  (stays_here ? traffic.sent_memory : traffic.sent_network) += length;
  const uint64_t addressed = tag | tag::slot_bits(members_.peer_info(destination).slot);
  if (wire == Wire::kStream) {
    reactor.send(locked, pending, *peer.stream, addressed, data, length);
  } else {
    reactor.send(locked, pending, peer.link(wire).endpoint(), addressed, data, length, kind);
  }
}

// Processes that have met as ranks of one host have no path of many connections, also if they say
// now that their hosts are different.
Wire GroupMessages::carrier(Wire wire, int rank) const {
  if (wire == Wire::kStream) return members_.peer(rank).same_host ? Wire::kShared : wire;
  return wire == Wire::kShared ? links_.main_wire(rank) : wire;
}

bool GroupMessages::uses(Wire wire) const {
  for (int rank = 0; rank < members_.world_size(); ++rank) {
    if (rank != members_.rank() && !shares_memory(rank) && carrier(Wire::kShared, rank) == wire)
      return true;
  }
  return false;
}

bool GroupMessages::connect(Locked& locked, int rank, Wire wire) {
  Peer& peer = members_.peer(rank);
  if (!links_.connect(locked, rank)) return false;
  if (wire == Wire::kPrivate) return locked.peers().connect_rail(locked, peer);
  // The probe asks for it before the group uses it.
  return wire != Wire::kStream || locked.peers().connect_stream(locked, peer);
}

void GroupMessages::receive(Locked& locked, Task& task, uint32_t token, int source, uint64_t tag,
                            uint64_t mask, void* data, size_t length, Wire wire, MemoryKind kind) {
  Reactor& reactor = locked.reactor();
  wire = carrier(wire, source);
  const bool is_gone = departure_.has_left(source);
  // Connects in this direction too, so that a death of the source is noticed. If the source cannot
  // be reached any more, what it had sent before is still received.
  if (!is_gone) {
    connect(locked, source, wire);
  }
  PendingRequest& pending = reactor.new_request(locked, task, task.record(locked).requests, token,
                                                source, /*is_receive=*/true, wire);
  const auto is_posted = [&] {
    if (wire == Wire::kStream) {
      reactor.receive_stream(locked, pending, tag, mask, data, length);
      return !pending.completed;
    }
    UcpWorker& worker =
        wire == Wire::kPrivate ? members_.peer(source).rail.worker() : reactor.worker();
    return reactor.receive(locked, pending, worker, tag, mask, data, length, kind);
  };
  const bool is_waiting = is_posted();
  if (is_waiting && is_gone) {
    // Everything that it ever sent arrived before its goodbye.
    task.stranded(locked, left_error(members_, source, task.name()));
  }
}

void GroupMessages::send_message(Locked& locked, Task& task, uint32_t token, int destination,
                                 uint32_t user_tag, const void* data, size_t length) {
  if (!shares_memory(destination) || departure_.has_left(destination)) {
    send(locked, task, token, destination, tag::point_to_point(0, members_.rank(), user_tag), data,
         length);
  } else if (!links_.connect(locked, destination)) {
    // The receiver could not be woken.
    links_.request_failed(locked, task, destination, Wire::kMemory, UCS_ERR_UNREACHABLE);
  } else {
    task.record(locked).traffic.sent_memory += length;
    matcher_->send_message(locked, task, token, destination, user_tag, data, length);
    if (turns_.num_running() == 0) update_sharing(locked);
  }
}

void GroupMessages::receive_message(Locked& locked, Task& task, uint32_t token, int source,
                                    uint32_t user_tag, void* data, size_t length) {
  if (source < 0) {
    receive_any(locked, task, token, user_tag, data, length);
    return;
  }
  if (!shares_memory(source)) {
    receive(locked, task, token, source, tag::point_to_point(slot_, source, user_tag), tag::kExact,
            data, length);
    return;
  }
  const bool is_gone = departure_.has_left(source);
  if (!is_gone) links_.connect(locked, source);
  PendingRequest& pending = locked.reactor().new_request(locked, task, task.record(locked).requests,
                                                         token, source, /*is_receive=*/true);
  if (matcher_->receive_message(locked, pending, source, user_tag, data, length)) return;
  if (is_gone) {
    task.stranded(locked, left_error(members_, source, task.name()));
  } else if (turns_.num_running() == 0) {
    update_sharing(locked);
  }
}

// UCX comes last: it does not ask before it writes to the memory of a receive.
void GroupMessages::receive_any(Locked& locked, Task& task, uint32_t token, uint32_t user_tag,
                                void* data, size_t length) {
  Reactor& reactor = locked.reactor();
  const uint64_t tag = tag::point_to_point(slot_, 0, user_tag);
  PendingRequest* first = nullptr;
  const auto contender = [&](Wire wire) -> PendingRequest& {
    PendingRequest& pending = reactor.new_request(locked, task, task.record(locked).requests, token,
                                                  -1, /*is_receive=*/true, wire);
    if (first != nullptr) reactor.compete(locked, *first, pending);
    return *(first = &pending);
  };
  if (matcher_) {
    if (matcher_->receive_message(locked, contender(Wire::kMemory), -1, user_tag, data, length))
      return;
    if (turns_.num_running() == 0) update_sharing(locked);
  }
  if (uses(Wire::kStream) && !reactor.receive_stream(locked, contender(Wire::kStream), tag,
                                                     tag::kAnySourceMask, data, length)) {
    return;
  }
  if (uses(Wire::kShared) || first == nullptr) {
    reactor.receive(locked, contender(Wire::kShared), reactor.worker(), tag, tag::kAnySourceMask,
                    data, length);
  }
}

// -------------------------------------------------------------------------------- shared memory

void GroupMessages::share_memory(Locked& locked, std::unique_ptr<ShmChannel> channel,
                                 ShmMatcher::OnUnexpected on_unexpected) {
  std::vector<Resident> residents;
  for (const int r : members_.host_ranks()) {
    residents.push_back(
        {r, r == members_.rank() ? nullptr : &members_.peer(r), members_.peer_info(r).slot});
  }
  matcher_ =
      std::make_unique<ShmMatcher>(locked.reactor(), locked.controls(), std::move(channel),
                                   residents, members_.world_size(), std::move(on_unexpected));
}

bool GroupMessages::send_shared(Locked& locked, Task& task, uint32_t token, int destination,
                                uint64_t tag, const void* data, size_t length, int ticket) {
  if (departure_.has_left(destination)) {
    task.stranded(locked, left_error(members_, destination, task.name()));
    return false;
  }
  task.record(locked).traffic.sent_memory += length;
  return matcher_->send(locked, task, token, destination, tag, data, length, ticket);
}

std::optional<ShmChannel::Message> GroupMessages::receive_shared(Locked& locked, Task& task,
                                                                 uint32_t token, int source,
                                                                 uint64_t tag) {
  auto message = matcher_->receive(locked, task, token, source, tag);
  if (!message) {
    if (turns_.num_running() == 0) update_sharing(locked);
    if (departure_.has_left(source)) {
      // Everything that it ever sent was taken when it left.
      task.stranded(locked, left_error(members_, source, task.name()));
    }
  } else {
    task.record(locked).traffic.received_memory += message->length;
  }
  return message;
}

bool GroupMessages::progress(Locked& locked) {
  bool any = matcher_->progress(locked);
  if (any && turns_.num_running() == 0) update_sharing(locked);
  for (Task* task : std::exchange(stalled_, {})) {
    if (task->is_over(locked)) continue;
    const bool waited = task->record(locked).jobs == 0;
    if (!task->stalled(locked)) continue;
    any = true;
    if (waited) {
      WaitMeter& waits = task->record(locked).waits;
      waits.woken_by(-1);
      waits.end(Clock::now());
    }
  }
  return any;
}

void GroupMessages::update_sharing(Locked& locked) {
  const bool is_needed = matcher_ && (!turns_.is_idle() || matcher_->expects_mail(locked));
  locked.group_host().set_sharing(locked, slot_, is_needed);
}

void GroupMessages::find_unexpected(Locked& locked,
                                    const std::function<bool(uint64_t tag, int sender)>& visit) {
  bool found = false;
  if (matcher_) {
    matcher_->find_unexpected(locked, [&](uint64_t tag, int sender) {
      found = visit(tag, sender);
      return found;
    });
  }
  if (found) return;
  const auto tag = locked.reactor().find_unexpected(
      locked, tag::base(tag::Kind::kCollective, slot_, 0), tag::kKindMask | tag::kSlotMask);
  if (tag) visit(*tag, tag::source_of(*tag, members_.world_size()));
}

void GroupMessages::drop_arrived(Locked& locked) {
  locked.reactor().drop_unexpected(locked, tag::slot_bits(slot_), tag::kSlotMask);
}

void GroupMessages::drop_collective(Locked& locked, uint64_t number, int sender) {
  const uint64_t sequence = number % tag::kSequenceCycle;
  const uint64_t of_sender =
      sender < 0 ? 0 : tag::kSourceMask & ~tag::fingerprint_mask(members_.world_size());
  locked.reactor().drop_unexpected(
      locked,
      tag::base(tag::Kind::kCollective, slot_, std::max(sender, 0)) | sequence
                                                                          << tag::kSequenceShift,
      tag::kKindMask | tag::kSlotMask | tag::kSequenceMask | of_sender);
  if (matcher_) matcher_->drop_collective(locked, sequence, sender);
}

void GroupMessages::drop(Locked& locked, int rank) {
  if (matcher_) matcher_->drop(locked, rank);
}

void GroupMessages::forget(Locked& locked, Task& task, bool tells) {
  if (!matcher_) return;
  matcher_->forget(locked, task, tells);
  update_sharing(locked);
}

bool GroupMessages::hear_ring(Locked& locked) {
  if (!matcher_) return false;
  matcher_->hear_ring(locked);
  return true;
}

}  // namespace q7x2
