// The messages of a collective, over the network and through shared memory, and the check that all
// ranks make the same call.
#include "executor/collective/collective.h"
#include "executor/collective/fingerprint.h"
#include "fabric/private_links.h"
#include "transport/run/runtime.h"
#include "transport/ucx/tag.h"

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

Wire CollectiveTask::wire(int peer) const {
  const Wire wire = group().links().wire(peer);
  if (wire != Wire::kPrivate || !fabric_) return wire;
  const auto host = [&](int rank) { return fabric_->host_of[static_cast<size_t>(rank)]; };
  return find_link(*fabric_, host(group().rank()), host(peer)) != nullptr ? wire : Wire::kShared;
}

void CollectiveTask::send(Locked& locked, Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  const Region message = region(place, choice_.plan->sources_of(op)[0], length);
  if (!shares_memory(op.peer)) {
    const uint64_t tag = tag::collective(0, group().rank(), sequence(), place.slice, op.message,
                                         fingerprint(op), group().world_size());
    group().messages().send(locked, *this, token_of(step), op.peer, tag, message.data,
                            message.bytes, wire(op.peer), residence_->message_kind());
    return;
  }
  if (message.bytes <= ShmChannel::kInlineBytes || place.staged[op.stage] == StageState::kYes) {
    post(locked, step);
  } else if (place.staged[op.stage] == StageState::kOnItsWay) {
    awaiting_stage_.push_back(step);
  } else {
    place.staged[op.stage] = StageState::kOnItsWay;
    OpJob& job = job_of(step, OpJob::Kind::kCopy, message.bytes);
    job.purpose = OpJob::Purpose::kStage;
    job.from.push_back({.elements = message.data, .message = {}});
    job.to = staging_.at(step.place, op);
    launch(locked, job);
  }
}

void CollectiveTask::post(Locked& locked, Step step) {
  const Place& place = places_[step.place];
  const Op& op = op_of(step);
  const size_t elements = slicing_.part(op.length_of, place.slice).bytes;
  const Region message = region(place, choice_.plan->sources_of(op)[0], elements);
  const bool is_staged = message.bytes > ShmChannel::kInlineBytes;
  const uint64_t tag = tag::shared_collective(sequence(), place.slice, op.message, fingerprint(op));
  if (group().messages().send_shared(
          locked, *this, token_of(step), op.peer, tag,
          is_staged ? staging_.at(step.place, op) : message.data, message.bytes,
          is_staged ? staging_.ticket(step.place) : ShmChannel::kNoTicket)) {
    complete(locked, step);
  }
}

void CollectiveTask::receive(Locked& locked, Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  if (!shares_memory(op.peer)) {
    const Region room = op.destination.is_coded()
                            ? Region{own_coded(place, op.destination.index), coder_->max_bytes()}
                            : writable(place, op.destination, length);
    group().messages().receive(locked, *this, token_of(step), op.peer,
                               tag::collective(group().slot(), op.peer, sequence(), place.slice,
                                               op.message, 0, group().world_size()),
                               ~tag::fingerprint_mask(group().world_size()), room.data, room.bytes,
                               wire(op.peer), residence_->message_kind());
    return;
  }
  const uint64_t tag = tag::shared_collective(sequence(), place.slice, op.message, 0);
  if (const auto message =
          group().messages().receive_shared(locked, *this, token_of(step), op.peer, tag)) {
    take(locked, step, *message);
  }
}

void CollectiveTask::arrived(Locked& locked, uint32_t token, const ShmChannel::Message& message) {
  take(locked, step_of(token), message);
  run_ready(locked);
}

void CollectiveTask::take(Locked& locked, Step step, const ShmChannel::Message& message) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  if (!is_expected(step, message.tag, message.length, /*is_shared=*/true)) {
    mismatch(locked, op.peer);
    return;
  }
  if (!op.destination.is_part() && message.staged != nullptr && residence_->uses_shared_memory()) {
    // Read where it lies. Only `writable` gives a block away to be changed, and not this memory.
    auto* const data = const_cast<std::byte*>(message.staged);
    if (op.destination.is_coded()) {
      place.coded_at[op.destination.index] = {data, message.length};
    } else {
      place.scratch_at[op.destination.index] = data;
    }
    place.held.emplace_back(op.peer, message);
    received(locked, step);
    return;
  }
  Region destination;
  if (op.destination.is_coded()) {
    destination = {own_coded(place, op.destination.index), message.length};
    place.coded_at[op.destination.index] = destination;
  } else {
    destination = writable(place, op.destination, message.length);
    if (!covers(locked, destination, message.length)) return;
  }
  // A descriptor's bytes move with the message.
  OpJob& job = job_of(step, OpJob::Kind::kCopy, message.length);
  job.purpose = OpJob::Purpose::kTake;
  if (message.staged != nullptr) place.held.emplace_back(op.peer, message);  // until it is copied
  job.message = message;
  job.from.push_back({.elements = job.message.data(), .message = {}});
  job.to = destination.data;
  launch(locked, job);
}

void CollectiveTask::completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) {
  const Step step = step_of(token);
  const Op& op = op_of(step);
  if (op.kind == OpKind::kRecv) {
    if (!is_expected(step, tag, length, /*is_shared=*/false)) {
      mismatch(locked, op.peer);
      return;
    }
    if (op.destination.is_coded()) {
      Place& place = places_[step.place];
      place.coded_at[op.destination.index] = {own_coded(place, op.destination.index), length};
    }
    received(locked, step);
  } else {
    complete(locked, step);
  }
  run_ready(locked);
}

void CollectiveTask::received(Locked& locked, Step step) {
  const Op& op = op_of(step);
  if (!inspects(op)) {
    complete(locked, step);
    return;
  }
  const Region written = slicing_.part(op.destination, places_[step.place].slice);
  OpJob& job = job_of(step, OpJob::Kind::kInspect, written.bytes);
  job.purpose = OpJob::Purpose::kInspect;
  job.to = written.data;
  job.inspects = true;
  launch(locked, job);
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

void CollectiveTask::truncated(Locked& locked, uint32_t token, uint64_t) {
  mismatch(locked, op_of(step_of(token)).peer);
}

void CollectiveTask::mismatch(Locked& locked, int peer) {
  group().agreement().disagree(locked, *this, peer);
}

}  // namespace q7x2
