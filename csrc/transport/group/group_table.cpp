#include "transport/group/group_table.h"

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"
#include "transport/group/group.h"
#include "transport/ucx/tag.h"

namespace q7x2 {

GroupTable::GroupTable(Reactor& reactor, PeerTable& peers, ControlPlane& controls)
    : reactor_(reactor), peers_(peers), controls_(controls), slots_(tag::kMaxGroups) {}

int GroupTable::reserve(Locked& locked) {
  for (int tries = 0; tries < tag::kMaxGroups; ++tries) {
    const int number = next_;
    next_ = (next_ + 1) % tag::kMaxGroups;
    Slot& slot = slots_[static_cast<size_t>(number)];
    if (!slot.is_taken) {
      slot = {.is_taken = true};
      // What came late for the slot's last group.
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
    group.fail(locked, group.failure_of(std::bad_alloc()));
  }
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
    handle_guarded(locked, control);
  }
  return !arrived.empty();
}

void GroupTable::fail_all(Locked& locked, const std::exception& exception) {
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&exception) != nullptr;
  for (Slot& slot : slots_) {
    if (slot.group != nullptr) {
      // In words that name this rank, whatever the type.
      slot.group->fail(locked, no_memory
                                   ? slot.group->failure_of(exception)
                                   : slot.group->failure_of(std::runtime_error(exception.what())));
    } else {
      slot.has_lost_mail |= slot.is_taken && no_memory;
    }
  }
}

// What a message could not do here, its group must know: the sender counts on it.
void GroupTable::handle_guarded(Locked& locked, const Control& control) {
  try {
    handle(locked, control);
  } catch (const std::exception& exception) {
    Group* group = control.slot < slots_.size() ? slots_[control.slot].group : nullptr;
    if (group != nullptr) group->fail(locked, group->failure_of(exception));
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
    // The group is over here. What its sender had sent before is taken, so that its calls end.
    reactor_.drop_unexpected(locked, tag::slot_bits(control.slot), tag::kSlotMask);
  } else if (control.type == ControlType::kHello) {
    // The group is over here. Whoever connects to it only now is told.
    if (Peer* const peer = peers_.find(locked, control.process)) {
      Control goodbye = control;
      goodbye.type = ControlType::kGoodbye;
      goodbye.sequence = ~uint64_t{0};  // nobody knows how many collectives it had begun
      goodbye.slot = control.sender_slot;
      goodbye.sender = control.receiver;
      goodbye.receiver = control.sender;
      controls_.send(locked, *peer, goodbye);
    }
  }
}

void GroupTable::peer_died(Locked& locked, Peer& peer) {
  for (Group* group : open_) {
    group->peer_died(locked, peer);
  }
}

void GroupTable::lose_host(Locked& locked, const Error& error) {
  for (Group* group : open_) {
    group->lose_host(locked, error);
  }
}

std::unordered_map<uint64_t, Peer*> GroupTable::job_members(Locked& locked) const {
  std::unordered_map<uint64_t, Peer*> members;
  for (const Group* group : open_) {
    group->add_job_members(locked, members);
  }
  return members;
}

std::vector<Peer*> GroupTable::failed_members(Locked& locked) const {
  std::vector<Peer*> failed;
  for (const Group* group : open_) {
    if (Peer* const peer = group->failed_member(locked)) failed.push_back(peer);
  }
  return failed;
}

void GroupTable::forget_job_ranks(Locked& locked) {
  for (Group* group : open_) {
    group->forget_job_ranks(locked);
  }
}

Group* GroupTable::find_common(Locked& locked, uint64_t process) const {
  const auto found = std::ranges::find_if(open_, [&](const Group* group) {
    return group->is_usable(locked) && group->membership().rank_of(process) >= 0;
  });
  return found == open_.end() ? nullptr : *found;
}

const Peer* GroupTable::awaited_peer(Locked& locked) const {
  for (const Group* group : open_) {
    if (const Peer* const peer = group->awaited_peer(locked)) return peer;
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
    // Leaving takes the lock itself.
    if (slot.group != nullptr) {
      slot.group->leave();
    }
  }
}

void GroupTable::set_sharing(Locked& locked, Group& group, bool is_needed) {
  const auto found = std::find(sharing_.begin(), sharing_.end(), &group);
  if (is_needed && found == sharing_.end()) {
    sharing_.push_back(&group);
    group.start_polling(locked);
  } else if (!is_needed && found != sharing_.end() && group.stop_polling(locked)) {
    group.set_asleep(locked, false);
    sharing_.erase(found);
  }
}

bool GroupTable::progress_sharing(Locked& locked) {
  bool any = false;
  for (const uint16_t slot : controls_.take_rung(locked)) {
    if (Group* const group = slots_[slot].group) {
      group->hear_ring(locked);
      any = true;
    }
  }
  // Groups come and go while they progress.
  for (size_t i = 0; i < sharing_.size(); ++i) {
    any |= sharing_[i]->progress_shared(locked);
  }
  return any;
}

void GroupTable::set_asleep(Locked& locked, bool asleep) {
  if (asleep == asleep_) {
    return;
  }
  asleep_ = asleep;
  for (Group* group : sharing_) {
    group->set_asleep(locked, asleep);
  }
}

}  // namespace q7x2
