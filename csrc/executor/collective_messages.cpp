// The messages of a collective, over the network and through shared memory, and the check that all
// ranks make the same call.
#include "executor/collective.h"
#include "executor/fingerprint.h"
#include "kernels/copy.h"
#include "transport/runtime.h"
#include "transport/tag.h"

namespace q7x2 {
namespace {

// A request's token: the place in the window, and the op.
constexpr int kOpBits = 24;

uint32_t token_of(DagWindow::Step step) {
  return step.place << kOpBits | step.op;
}
DagWindow::Step step_of(uint32_t token) {
  return {token >> kOpBits, token & ((uint32_t{1} << kOpBits) - 1)};
}

}  // namespace

void CollectiveTask::send(Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  const Block& block = choice_.plan->sources_of(op)[0];
  const Region message = region(place, block, length);
  const std::byte* source = message.data;
  length = message.bytes;
  if (!group().shares_memory(op.peer)) {
    const uint64_t tag = tag::collective(0, group().rank(), sequence(), place.slice, op.message,
                                         fingerprint(op), group().world_size());
    group().send(*this, token_of(step), op.peer, tag, source, length, group().wire(op.peer));
    return;
  }
  const uint64_t tag = tag::shared_collective(sequence(), place.slice, op.message, fingerprint(op));
  int ticket = HostChannel::kNoTicket;
  if (length > HostChannel::kInlineBytes) {
    std::byte* const stage = staging_.at(step.place, op);
    if (!place.staged[op.stage]) {
      place.staged[op.stage] = true;
      copy_bytes(stage, source, length);
    }
    source = stage;
    ticket = staging_.ticket(step.place);
  }
  if (group().send_shared(*this, token_of(step), op.peer, tag, source, length, ticket)) {
    complete(step);
  }
}

void CollectiveTask::receive(Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  if (!group().shares_memory(op.peer)) {
    const Region room = op.destination.is_coded()
                            ? Region{own_coded(place, op.destination.index), coder_->max_bytes()}
                            : writable(place, op.destination, length);
    group().receive(*this, token_of(step), op.peer,
                    tag::collective(group().slot(), op.peer, sequence(), place.slice, op.message, 0,
                                    group().world_size()),
                    ~tag::fingerprint_mask(group().world_size()), room.data, room.bytes,
                    group().wire(op.peer));
    return;
  }
  const uint64_t tag = tag::shared_collective(sequence(), place.slice, op.message, 0);
  if (const auto message = group().receive_shared(*this, token_of(step), op.peer, tag)) {
    take(step, *message);
  }
}

void CollectiveTask::arrived(uint32_t token, const HostChannel::Message& message) {
  take(step_of(token), message);
  run_ready();
}

void CollectiveTask::take(Step step, const HostChannel::Message& message) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  if (!is_expected(step, message.tag, message.length, /*is_shared=*/true)) {
    mismatch(op.peer);
    return;
  }
  if (!op.destination.is_part() && message.staged != nullptr) {
    // Read where it lies. Only `writable` gives a block away to be changed, and not this memory.
    auto* const data = const_cast<std::byte*>(message.staged);
    if (op.destination.is_coded()) {
      place.coded_at[op.destination.index] = {data, message.length};
    } else {
      place.scratch_at[op.destination.index] = data;
    }
    place.held.emplace_back(op.peer, message);
  } else if (op.destination.is_coded()) {
    Region& coded = place.coded_at[op.destination.index];
    coded = {own_coded(place, op.destination.index), message.length};
    copy_bytes(coded.data, message.data(), message.length);
    group().give_back(op.peer, message);
  } else {
    const Region destination = writable(place, op.destination, message.length);
    if (!covers(destination, message.length)) return;
    copy_bytes(destination.data, message.data(), message.length);
    group().give_back(op.peer, message);
  }
  complete(step);
}

void CollectiveTask::completed(uint32_t token, size_t length, uint64_t tag) {
  const Step step = step_of(token);
  const Op& op = op_of(step);
  if (op.kind == OpKind::kRecv) {
    if (!is_expected(step, tag, length, /*is_shared=*/false)) {
      mismatch(op.peer);
      return;
    }
    if (op.destination.is_coded()) {
      Place& place = places_[step.place];
      place.coded_at[op.destination.index] = {own_coded(place, op.destination.index), length};
    }
  }
  complete(step);
  run_ready();
}

bool CollectiveTask::is_expected(Step step, uint64_t tag, size_t length, bool is_shared) const {
  const Op& op = op_of(step);
  const size_t slice = places_[step.place].slice;
  const bool fits = op.destination.is_coded() ? length <= coder_->max_bytes()
                                              : length == slicing_.part(op.length_of, slice).bytes;
  const uint64_t mask =
      is_shared ? tag::kSharedFingerprintMask : tag::fingerprint_mask(group().world_size());
  return ((tag ^ fingerprint(op)) & mask) == 0 && fits;
}

uint64_t CollectiveTask::fingerprint(const Op& op) const {
  const uint64_t whole = call_.uneven
                             ? fingerprint_of_part(fingerprint_, slicing_.whole(op.length_of).bytes)
                             : fingerprint_;
  return tag::turned(whole, op.message);
}

void CollectiveTask::truncated(uint32_t token, uint64_t) {
  mismatch(op_of(step_of(token)).peer);
}

void CollectiveTask::mismatch(int peer) {
  group().disagree(*this, peer);
}

}  // namespace q7x2
