#include "transport/group/group_table.h"

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"
#include "transport/group/group.h"
#include "transport/group/group_failure.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

// What ends a call must not end it before messages that were sent earlier have arrived. A failure
// counts at once, and again then, to drop what is left of them.
bool counts_now(const Control& control) {
  using Turn = StreamNotice::Turn;
  const bool is_goodbye = control.type == ControlType::kGoodbye;
  const bool is_failure =
      control.type == ControlType::kAbort || control.type == ControlType::kFailedCall;
  return control.turn == Turn::kInOrder || (control.turn == Turn::kEarly && !is_goodbye) ||
         (control.turn == Turn::kAgain && (is_goodbye || is_failure));
}

}  // namespace

GroupTable::GroupTable(Reactor& reactor, PeerTable& peers, ControlPlane& controls)
    : reactor_(reactor), peers_(peers), controls_(controls), slots_(tag::kMaxGroups) {
  if (StreamLane* const lane = reactor.streams()) {
    lane->on_unexpected(
        [this](uint64_t tag) { return slots_[static_cast<size_t>(tag::slot_of(tag))].is_taken; });
  }
}

int GroupTable::reserve(Locked& locked) {
  for (int tries = 0; tries < tag::kMaxGroups; ++tries) {
    const int number = next_;
    next_ = (next_ + 1) % tag::kMaxGroups;
    Slot& slot = slots_[static_cast<size_t>(number)];
    if (!slot.is_taken) {
      slot = {.is_taken = true};
      // Messages that arrived late for the slot's last group.
      reactor_.drop_unexpected(locked, tag::slot_bits(number), tag::kSlotMask);
      return number;
    }
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      "a process can be in at most " + std::to_string(tag::kMaxGroups) + " q7x2 groups at once");
}

void GroupTable::open(Locked& locked, int number, Group& group) {
  Slot& slot = slots_[static_cast<size_t>(number)];
  slot.group = &group;
  open_.push_back(&group);
  for (const Control& control : std::exchange(early_, {})) {
    handle(locked, control);
  }
  if (slot.has_lost_mail) {
    group.fail(locked, failure_of(group.membership(), std::bad_alloc()));
  }
  const Membership& members = group.membership();
  for (int r = 0; r < members.world_size(); ++r) {
    if (r != members.rank() && members.peer(r).life.is_dead()) {
      member_died(locked, group, members.peer(r));  // if it died after the peer infos were written
    }
  }
}

void GroupTable::set_job_ranks(const Group& group, std::vector<uint64_t> job_ranks) {
  const Locked locked(reactor_.lock());
  slots_[static_cast<size_t>(group.slot())].job_ranks = std::move(job_ranks);
}

void GroupTable::close(Locked& locked, int number, bool ended_late) {
  ended_late_ = ended_late;
  Slot& slot = slots_[static_cast<size_t>(number)];
  std::erase(sharing_, slot.group);
  std::erase(open_, slot.group);
  std::erase_if(early_, [&](const Control& control) { return control.slot == number; });
  slot = {};
  reactor_.drop_unexpected(locked, tag::slot_bits(number), tag::kSlotMask);
}

bool GroupTable::deliver(Locked& locked) {
  if (controls_.is_idle(locked)) {
    return false;
  }
  if (controls_.take_lost(locked)) {
    fail_all(locked, std::bad_alloc());
  }
  const std::vector<Control> arrived = controls_.take_arrived(locked);
  for (const Control& control : arrived) {
    if (counts_now(control)) handle_guarded(locked, control);
  }
  return !arrived.empty();
}

void GroupTable::fail_all(Locked& locked, const std::exception& exception) {
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&exception) != nullptr;
  for (Slot& slot : slots_) {
    if (slot.group != nullptr) {
      // A message that names this rank, whatever the exception's type.
      const Membership& members = slot.group->membership();
      slot.group->fail(locked, no_memory
                                   ? failure_of(members, exception)
                                   : failure_of(members, std::runtime_error(exception.what())));
    } else {
      slot.has_lost_mail |= slot.is_taken && no_memory;
    }
  }
}

// If a message cannot be handled here, its group must fail, because the sender counts on it.
void GroupTable::handle_guarded(Locked& locked, const Control& control) {
  try {
    handle(locked, control);
  } catch (const std::exception& exception) {
    Group* group = control.slot < slots_.size() ? slots_[control.slot].group : nullptr;
    if (group != nullptr) group->fail(locked, failure_of(group->membership(), exception));
  }
}

void GroupTable::handle(Locked& locked, const Control& control) {
  if (control.slot >= slots_.size()) {
    return;
  }
  const Slot& slot = slots_[control.slot];
  if (slot.group != nullptr) {
    slot.group->handle(locked, control);
  } else if (slot.is_taken) {
    early_.push_back(control);
  } else if (control.type == ControlType::kAbort) {
    // The group has ended here. Takes what the sender had sent before, so that its calls end.
    reactor_.drop_unexpected(locked, tag::slot_bits(control.slot), tag::kSlotMask);
  } else if (control.type == ControlType::kHello) {
    // The group has ended here. A rank that connects only now is told.
    if (Peer* const peer = peers_.find(locked, control.process)) {
      Control goodbye = control;
      goodbye.type = ControlType::kGoodbye;
      goodbye.sequence = ~uint64_t{0};  // unknown how many collectives it had begun
      goodbye.slot = control.sender_slot;
      goodbye.sender = control.receiver;
      goodbye.receiver = control.sender;
      controls_.send(locked, *peer, goodbye, control.wire);
    }
  }
}

void GroupTable::peer_died(Locked& locked, Peer& peer) {
  for (Group* group : open_) {
    if (group->membership().rank_of(peer) >= 0) member_died(locked, *group, peer);
  }
}

void GroupTable::member_died(Locked& locked, Group& group, const Peer& peer) {
  if (group.departure().has_left(group.membership().rank_of(peer))) return;
  group.progress_shared(locked);  // handles what it wrote before
  group.fail(locked, death_of(group.membership(), peer));
}

// An abort might not reach the other ranks: before the first active message over a connection, UCX
// waits for an answer, and that would not arrive here.
void GroupTable::lose_host(Locked& locked, const Error& error) {
  for (Group* group : open_) {
    if (group->membership().host_ranks().size() > 1) group->fail(locked, error);
  }
}

std::unordered_map<uint64_t, Peer*> GroupTable::job_members(Locked&) const {
  std::unordered_map<uint64_t, Peer*> members;
  for (const Group* group : open_) {
    const Membership& known = group->membership();
    const auto& names = slots_[static_cast<size_t>(group->slot())].job_ranks;
    for (int r = 0; names && r < known.world_size(); ++r) {
      const auto index = static_cast<size_t>(r);
      if (r != known.rank()) {
        members.emplace(names->empty() ? index : (*names)[index], &known.peer(r));
      }
    }
  }
  return members;
}

// The newest, if the one before it has not ended yet.
Group* GroupTable::default_group(Locked&) const {
  const auto found = std::find_if(open_.rbegin(), open_.rend(), [&](const Group* group) {
    const auto& names = slots_[static_cast<size_t>(group->slot())].job_ranks;
    return names && names->empty();
  });
  return found == open_.rend() ? nullptr : *found;
}

std::vector<Peer*> GroupTable::failed_members(Locked&) const {
  std::vector<Peer*> failed;
  for (const Slot& slot : slots_) {
    if (slot.culprit != nullptr) failed.push_back(slot.culprit);
  }
  return failed;
}

void GroupTable::forget_job_ranks(Locked&) {
  for (Slot& slot : slots_) slot.job_ranks.reset();
}

Group* GroupTable::find_common(Locked& locked, uint64_t process) const {
  const auto found = std::ranges::find_if(open_, [&](const Group* group) {
    return group->is_usable(locked) && group->membership().rank_of(process) >= 0;
  });
  return found == open_.end() ? nullptr : *found;
}

const Peer* GroupTable::awaited_peer(Locked& locked) const {
  for (Group* group : open_) {
    const int rank = group->agreement().awaited_rank(locked);
    if (rank >= 0) return &group->membership().peer(rank);
  }
  return nullptr;
}

void GroupTable::housekeep(Locked& locked, TimePoint now) {
  for (Group* group : open_) {
    group->housekeep(locked, now);
  }
}

void GroupTable::say_last_call(Group* group) {
  Locked locked(reactor_.lock());
  for (Group* each : open_) {
    if (group == nullptr || each == group) each->say_last_call(locked);
  }
}

void GroupTable::leave_all() {
  for (const Slot& slot : slots_) {
    // `leave` takes the lock itself.
    if (slot.group != nullptr) {
      slot.group->leave();
    }
  }
}

void GroupTable::set_sharing(Locked& locked, int slot, bool is_needed) {
  Group* const group = slots_[static_cast<size_t>(slot)].group;
  if (group == nullptr) return;
  const auto found = std::find(sharing_.begin(), sharing_.end(), group);
  if (is_needed && found == sharing_.end()) {
    sharing_.push_back(group);
    group->messages().start_polling(locked);
  } else if (!is_needed && found != sharing_.end() && group->messages().stop_polling(locked)) {
    group->messages().set_asleep(locked, false);
    sharing_.erase(found);
  }
}

bool GroupTable::progress_sharing(Locked& locked) {
  bool any = false;
  for (const uint16_t slot : controls_.take_rung(locked)) {
    any |= hear_ring(locked, slot);
  }
  // Progress may add groups to the list and remove others.
  for (size_t i = 0; i < sharing_.size(); ++i) {
    any |= sharing_[i]->progress_shared(locked);
  }
  return any;
}

bool GroupTable::hear_ring(Locked& locked, int slot) {
  Group* const group = slots_[static_cast<size_t>(slot)].group;
  if (group == nullptr || !group->is_usable(locked)) return false;
  if (group->messages().hear_ring(locked)) {
    group->progress_shared(locked);
    if (group->messages().channel()->has_descriptors()) set_sharing(locked, slot, true);
  }
  return true;
}

void GroupTable::set_asleep(Locked& locked, bool asleep) {
  if (asleep == asleep_) {
    return;
  }
  asleep_ = asleep;
  for (Group* group : sharing_) {
    group->messages().set_asleep(locked, asleep);
  }
}

}  // namespace q7x2
