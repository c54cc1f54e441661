// The messages of a group's tasks, over the network and through shared memory.
#include <algorithm>
#include <utility>

#include "transport/group/group.h"
#include "transport/run/runtime.h"
#include "transport/ucx/tag.h"

namespace q7x2 {

void Group::send(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
                 const void* data, size_t length, Wire wire, MemoryKind kind) {
  if (has_left(destination)) {
    task.stranded(locked, left_error(destination, task));
    return;
  }
  Reactor& reactor = runtime_.reactor();
  Peer& peer = members_.peer(destination);
  const bool is_reached = connect(locked, destination) &&
                          (wire != Wire::kPrivate || runtime_.peers().connect_rail(locked, peer));
  // What may throw comes before: a request that is never posted never completes.
  PendingRequest& pending = reactor.new_request(locked, task, task.record(locked).requests, token,
                                                destination, /*is_receive=*/false, wire);
  if (!is_reached) {
    reactor.complete(locked, pending, UCS_ERR_UNREACHABLE);
    return;
  }
  Traffic& traffic = task.record(locked).traffic;
  // From device to device of a host.
  const bool stays_here = kind != MemoryKind::kHost && same_host(destination);
  (stays_here ? traffic.sent_memory : traffic.sent_network) += length;
  reactor.send(locked, pending, peer.link(wire).endpoint(),
               tag | tag::slot_bits(peer_info(destination).slot), data, length, kind);
}

void Group::receive(Locked& locked, Task& task, uint32_t token, int source, uint64_t tag,
                    uint64_t mask, void* data, size_t length, Wire wire, MemoryKind kind) {
  Reactor& reactor = runtime_.reactor();
  const bool is_gone = source >= 0 && has_left(source);
  // Connected in both directions, so that a death of the source is noticed. Where it cannot be
  // reached any more, what it had sent before is still received.
  if (source >= 0 && !is_gone) {
    connect(locked, source);
    if (wire == Wire::kPrivate) {
      runtime_.peers().connect_rail(locked, members_.peer(source));
    }
  }
  PendingRequest& pending = reactor.new_request(locked, task, task.record(locked).requests, token,
                                                source, /*is_receive=*/true, wire);
  UcpWorker& worker =
      wire == Wire::kPrivate ? members_.peer(source).rail.worker() : reactor.worker();
  const bool is_waiting = reactor.receive(locked, pending, worker, tag, mask, data, length, kind);
  if (is_waiting && is_gone) {
    // All that it ever sent has arrived before its goodbye.
    task.stranded(locked, left_error(source, task));
  }
}

void Group::send_message(Locked& locked, Task& task, uint32_t token, int destination,
                         uint32_t user_tag, const void* data, size_t length) {
  if (!shares_memory(destination) || has_left(destination)) {
    send(locked, task, token, destination, tag::point_to_point(0, rank(), user_tag), data, length);
  } else if (!connect(locked, destination)) {
    // It could not be woken.
    request_failed(locked, task, destination, Wire::kMemory, UCS_ERR_UNREACHABLE);
  } else {
    task.record(locked).traffic.sent_memory += length;
    matcher_->send_message(locked, task, token, destination, user_tag, data, length);
    if (running_ == 0) update_sharing(locked);
  }
}

void Group::receive_message(Locked& locked, Task& task, uint32_t token, int source,
                            uint32_t user_tag, void* data, size_t length) {
  const bool is_any = source < 0;
  const uint64_t tag = tag::point_to_point(slot_, is_any ? 0 : source, user_tag);
  const uint64_t mask = is_any ? tag::kAnySourceMask : tag::kExact;
  if (!matcher_ || (!is_any && !shares_memory(source))) {
    receive(locked, task, token, source, tag, mask, data, length);
    return;
  }
  const bool is_gone = !is_any && has_left(source);
  if (!is_any && !is_gone) connect(locked, source);
  Reactor& reactor = runtime_.reactor();
  PendingRequest& pending = reactor.new_request(locked, task, task.record(locked).requests, token,
                                                source, /*is_receive=*/true);
  if (matcher_->receive_message(locked, pending, source, user_tag, data, length)) return;
  if (is_gone) {
    task.stranded(locked, left_error(source, task));
    return;
  }
  if (is_any && !reactor.receive(locked, pending, reactor.worker(), tag, mask, data, length)) {
    matcher_->forget_expected(locked, pending);
  }
  if (running_ == 0) update_sharing(locked);
}

// -------------------------------------------------------------------------------- shared memory

void Group::share_memory(Locked& locked, std::unique_ptr<ShmChannel> channel) {
  std::vector<Resident> residents;
  for (const int r : members_.host_ranks()) {
    residents.push_back({r, r == rank() ? nullptr : &members_.peer(r), peer_info(r).slot});
  }
  matcher_ = std::make_unique<ShmMatcher>(runtime_.reactor(), runtime_.controls(),
                                          std::move(channel), residents, world_size(),
                                          [this](Locked& held, uint64_t tag, int sender) {
                                            is_leftover(held, tag, sender, oldest_running(held));
                                          });
  hear_ring(locked);  // one that came before, from a rank that may have left since
  for (const int r : members_.host_ranks()) {
    if (has_left(r)) matcher_->drop(locked, r);
  }
}

bool Group::send_shared(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
                        const void* data, size_t length, int ticket) {
  if (has_left(destination)) {
    task.stranded(locked, left_error(destination, task));
    return false;
  }
  task.record(locked).traffic.sent_memory += length;
  return matcher_->send(locked, task, token, destination, tag, data, length, ticket);
}

std::optional<ShmChannel::Message> Group::receive_shared(Locked& locked, Task& task, uint32_t token,
                                                         int source, uint64_t tag) {
  auto message = matcher_->receive(locked, task, token, source, tag);
  if (!message) {
    if (running_ == 0) {
      update_sharing(locked);
    }
    if (has_left(source)) {
      // All that it ever sent was taken when it left.
      task.stranded(locked, left_error(source, task));
    }
  } else {
    task.record(locked).traffic.received_memory += message->length;
  }
  return message;
}

void Group::release_message(Locked& locked, int source, const ShmChannel::Message& message) {
  matcher_->release_message(locked, source, message);
}

void Group::retire_staging(Locked& locked, ShmChannel::Staging staging, std::vector<int> tickets) {
  matcher_->retire_staging(locked, staging, std::move(tickets));
}

bool Group::progress_shared(Locked& locked) {
  bool any = false;
  try {
    any = matcher_->progress(locked);
    if (any && running_ == 0) {
      update_sharing(locked);
    }
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
    if (!waiting_.empty()) {
      matcher_->free_returned(locked);
      start_waiting(locked);
    }
  } catch (const std::exception& exception) {
    fail(locked, failure_of(exception));
    any = true;
  }
  runtime_.tasks().drain(locked);
  return any;
}

// An abort might not reach the others: before the first active message over a connection UCX waits
// for an answer, which would not arrive here.
void Group::lose_host(Locked& locked, const Error& error) {
  if (members_.host_ranks().size() > 1) fail(locked, error);
}

void Group::hear_ring(Locked& locked) {
  if (matcher_ && !error_) {
    matcher_->hear_ring(locked);
    progress_shared(locked);
    if (matcher_->channel().has_descriptors()) runtime_.groups().set_sharing(locked, *this, true);
  }
}

void Group::set_asleep(Locked&, bool asleep) {
  matcher_->channel().set_asleep(asleep);
}

void Group::forget_shared(Locked& locked, Task& task) {
  if (matcher_) {
    matcher_->forget(locked, task, /*tells=*/!error_ && !closed_);
    update_sharing(locked);
  }
}

}  // namespace q7x2
