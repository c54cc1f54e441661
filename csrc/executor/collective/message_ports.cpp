#include "executor/collective/message_ports.h"

#include <algorithm>
#include <iterator>

#include "executor/collective/fingerprint.h"
#include "fabric/private_links.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

static_assert(Plan::kMaxMessages == tag::kMaxMessages);

// A request's token: the place in the window, and the op.
constexpr int kOpBits = 24;

uint32_t token_of(DagWindow::Step step) {
  return step.place << kOpBits | step.op;
}

}  // namespace

MessagePorts::Step MessagePorts::step_of(uint32_t token) {
  return {token >> kOpBits, token & ((uint32_t{1} << kOpBits) - 1)};
}

Wire MessagePorts::wire(int peer) const {
  const Group& group = task_.group();
  const Fabric* const fabric = run_.fabric().get();
  const Wire wire = task_.group().links().wire(peer);
  if (wire != Wire::kPrivate || fabric == nullptr) return wire;
  const auto host = [&](int rank) { return fabric->host_of[static_cast<size_t>(rank)]; };
  return find_link(*fabric, host(group.rank()), host(peer)) != nullptr ? wire : Wire::kShared;
}

// ------------------------------------------------------------------------------------------ sends

OpOutcome MessagePorts::send(Locked& locked, Step step, size_t length) {
  const Op& op = run_.op(step.op);
  const Region message = blocks_.region(step.place, run_.plan().sources_of(op)[0], length);
  if (!shares_memory(op.peer)) {
    const Group& group = task_.group();
    const uint64_t tag =
        tag::collective(0, group.rank(), sequence(locked), blocks_.slice(step.place), op.message,
                        fingerprint(op), group.world_size());
    task_.group().messages().send(locked, task_, token_of(step), op.peer, tag, message.data,
                                  message.bytes, wire(op.peer), run_.residence().message_kind());
    return OpOutcome::waits();
  }
  if (message.bytes <= ShmChannel::kInlineBytes) return post(locked, step);
  switch (blocks_.stage(step)) {
    case BlockMap::StageState::kYes:
      return post(locked, step);
    case BlockMap::StageState::kOnItsWay:
      awaiting_stage_.push_back(step);
      return OpOutcome::waits();
    case BlockMap::StageState::kNo:
      break;
  }
  return OpOutcome::continued_by(ops_.stage(step, message));
}

OpOutcome MessagePorts::post(Locked& locked, Step step) {
  const Op& op = run_.op(step.op);
  const size_t elements = run_.slicing().part(op.length_of, blocks_.slice(step.place)).bytes;
  const Region message = blocks_.region(step.place, run_.plan().sources_of(op)[0], elements);
  const bool is_staged = message.bytes > ShmChannel::kInlineBytes;
  const SharedStaging& staging = blocks_.staging();
  const uint64_t tag = tag::shared_collective(sequence(locked), blocks_.slice(step.place),
                                              op.message, fingerprint(op));
  const bool is_sent = task_.group().messages().send_shared(
      locked, task_, token_of(step), op.peer, tag,
      is_staged ? staging.at(step.place, op) : message.data, message.bytes,
      is_staged ? staging.ticket(step.place) : ShmChannel::kNoTicket);
  return is_sent ? OpOutcome::complete() : OpOutcome::waits();
}

std::vector<MessagePorts::Step> MessagePorts::take_waiting(Step step) {
  const auto has_same_stage = [&](const Step& other) {
    return other.place == step.place && run_.op(other.op).stage == run_.op(step.op).stage;
  };
  std::vector<Step> ready;
  std::ranges::copy_if(awaiting_stage_, std::back_inserter(ready), has_same_stage);
  std::erase_if(awaiting_stage_, has_same_stage);
  return ready;
}

// --------------------------------------------------------------------------------------- receives

OpOutcome MessagePorts::receive(Locked& locked, Step step, size_t length) {
  const Op& op = run_.op(step.op);
  GroupMessages& messages = task_.group().messages();
  const size_t slice = blocks_.slice(step.place);
  if (!shares_memory(op.peer)) {
    const int ranks = task_.group().world_size();
    const Region room = op.destination.is_coded()
                            ? blocks_.room_for_message(step.place, op.destination.index)
                            : blocks_.writable(step.place, op.destination, length);
    messages.receive(locked, task_, token_of(step), op.peer,
                     tag::collective(task_.group().slot(), op.peer, sequence(locked), slice,
                                     op.message, 0, ranks),
                     ~tag::fingerprint_mask(ranks), room.data, room.bytes, wire(op.peer),
                     run_.residence().message_kind());
    return OpOutcome::waits();
  }
  const uint64_t tag = tag::shared_collective(sequence(locked), slice, op.message, 0);
  const auto message = messages.receive_shared(locked, task_, token_of(step), op.peer, tag);
  return message ? take(locked, step, *message) : OpOutcome::waits();
}

OpOutcome MessagePorts::take(Locked& locked, Step step, const ShmChannel::Message& message) {
  const Op& op = run_.op(step.op);
  const Block& block = op.destination;
  if (!is_expected(step, message.tag, message.length, /*is_shared=*/true)) {
    disagree(locked, step);
    return OpOutcome::waits();
  }
  if (!block.is_part() && message.staged != nullptr && run_.residence().uses_shared_memory()) {
    // The block is read in place. The cast is safe: blocks are only written through `writable`,
    // which never returns this memory.
    blocks_.move(step.place, block, {const_cast<std::byte*>(message.staged), message.length});
    blocks_.hold(step.place, op.peer, message);
    return ops_.received(step);
  }
  Region destination;
  if (block.is_coded()) {
    destination = {blocks_.room_for_message(step.place, block.index).data, message.length};
    blocks_.move(step.place, block, destination);
  } else {
    destination = blocks_.writable(step.place, block, message.length);
    ops_.check_covers(destination, message.length);
  }
  if (message.staged != nullptr) blocks_.hold(step.place, op.peer, message);  // until it is copied
  return OpOutcome::continued_by(ops_.take(step, message, destination));
}

OpOutcome MessagePorts::taken(Locked& locked, Step step, const ShmChannel::Message& message) {
  const int peer = run_.op(step.op).peer;
  blocks_.let_go(step.place, peer, message);
  task_.group().messages().release_message(locked, peer, message);
  return ops_.received(step);
}

OpOutcome MessagePorts::completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) {
  const Step step = step_of(token);
  const Op& op = run_.op(step.op);
  if (op.kind != OpKind::kRecv) return OpOutcome::complete();
  if (!is_expected(step, tag, length, /*is_shared=*/false)) {
    disagree(locked, step);
    return OpOutcome::waits();
  }
  if (op.destination.is_coded()) {
    std::byte* const room = blocks_.room_for_message(step.place, op.destination.index).data;
    blocks_.move(step.place, op.destination, {room, length});
  }
  return ops_.received(step);
}

// ------------------------------------------------------------------------ agreement of the ranks

bool MessagePorts::is_expected(Step step, uint64_t tag, size_t length, bool is_shared) const {
  const Op& op = run_.op(step.op);
  const size_t slice = blocks_.slice(step.place);
  const bool fits = op.destination.is_coded()
                        ? length <= run_.coder()->max_bytes()
                        : length == run_.slicing().part(op.length_of, slice).bytes;
  const uint64_t mask =
      is_shared ? tag::kSharedFingerprintMask : tag::fingerprint_mask(task_.group().world_size());
  return ((tag ^ fingerprint(op)) & mask) == 0 && fits;
}

uint64_t MessagePorts::fingerprint(const Op& op) const {
  const uint64_t whole =
      run_.call().uneven
          ? fingerprint_of_part(run_.fingerprint(), run_.slicing().whole(op.length_of).bytes)
          : run_.fingerprint();
  return tag::turned(whole, op.message);
}

void MessagePorts::disagree(Locked& locked, Step step) {
  task_.group().agreement().disagree(locked, task_, run_.op(step.op).peer);
}

}  // namespace q7x2
