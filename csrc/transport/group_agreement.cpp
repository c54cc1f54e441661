// Whether all ranks of a group make the same calls.
//
// Ranks that disagree about a message find out when it meets its receive. What follows finds the
// rest: a message that nobody receives, and ranks that all wait while none sends.
#include <algorithm>
#include <set>

#include "transport/group.h"
#include "transport/runtime.h"
#include "transport/tag.h"

namespace q7x2 {
namespace {

// How many collectives back a message is recognised as one that was never received.
constexpr uint64_t kLeftoverWindow = 256;

}  // namespace

void Group::housekeep(Locked& locked, TimePoint now) {
  if (error_) {
    drop_mail(locked);  // what came over a private link
  }
  if (running_ == 0) {
    return;
  }
  if (const auto error = leftover(locked, oldest_running(locked))) {
    fail(locked, *error);
  }
  inquire(locked, now);
}

// ------------------------------------------------------------------ messages that nobody receives

// With others in progress, the one that is complete last asks, and housekeeping before that.
std::optional<Error> Group::leftover(Locked& locked) {
  return running_ == 1 ? leftover(locked, sequence_) : std::nullopt;
}

// So a root that nobody else takes for the root learns of it. `oldest` is the number of the oldest
// collective that is not complete.
std::optional<Error> Group::leftover(Locked& locked, uint64_t oldest) {
  std::optional<Error> error;
  if (mailroom_) {
    mailroom_->find_unexpected(locked, [&](uint64_t tag, int sender) {
      error = leftover_error(tag, sender, oldest);
      return error.has_value();
    });
  }
  if (!error) {
    if (const auto tag = runtime_.reactor().find_unexpected(
            locked, tag::base(tag::Kind::kCollective, slot_, 0), tag::kKindMask | tag::kSlotMask)) {
      error = leftover_error(*tag, tag::source_of(*tag, world_size()), oldest);
    }
  }
  return error;
}

std::optional<Error> Group::leftover_error(uint64_t tag, int sender, uint64_t oldest) const {
  const uint64_t behind = (oldest - tag::sequence_of(tag)) % tag::kSequenceCycle;
  // A sender may be far ahead, so most of the cycle means that.
  if (behind == 0 || behind > kLeftoverWindow || sender >= world_size()) {
    return std::nullopt;
  }
  return Error(ErrorCode::kMismatch,
               "ranks disagree about a collective: " + describe(sender) +
                   " sent a message in collective number " + std::to_string(oldest - behind) +
                   ", which rank " + std::to_string(rank()) +
                   " completed without it (a different root, shape or collective)",
               sender);
}

uint64_t Group::oldest_running(Locked& locked) const {
  uint64_t oldest = sequence_;
  for (const auto& task : runtime_.tasks().active(locked)) {
    const Task::Record& record = task->record(locked);
    if (&task->group() == this && record.is_started && !task->is_over(locked) &&
        task->takes_turn()) {
      oldest = std::min(oldest, record.sequence);
    }
  }
  return oldest;
}

// ----------------------------------------------------------------------- ranks that wait and ask

// Ranks that disagree about a call may all wait and none send, where no message tells them. So who
// has waited for long asks, and again each time that it has waited for twice as long.
void Group::inquire(Locked& locked, TimePoint now) {
  for (const auto& task : runtime_.tasks().active(locked)) {
    Task::Record& record = task->record(locked);
    if (&task->group() == this && record.is_started && !task->is_over(locked) &&
        task->takes_turn() && now >= record.next_inquiry) {
      record.next_inquiry = now + (now - task->submitted());
      inquire_about(locked, *task);
    }
  }
}

void Group::inquire_about(Locked& locked, Task& task) {
  const Task::Record& record = task.record(locked);
  std::set<int> others;
  for (const PendingRequest* p = record.requests.first(); p != nullptr; p = p->next) {
    if (p->peer >= 0) others.insert(p->peer);
  }
  if (others.empty()) {
    // It waits until ranks of this host have read what it put into shared memory.
    others.insert(members_.host_ranks().begin(), members_.host_ranks().end());
    others.erase(rank());
  }
  for (const int other : others) {
    Peer& peer = members_.peer(other);
    if (has_left(other) || !peer.life.is_alive()) {
      continue;
    }
    Control inquiry = control_to(other, ControlType::kInquiry);
    inquiry.sequence = record.sequence;
    inquiry.fingerprint = calls_[record.sequence % kRemembered];
    inquiry.text = task.name();
    runtime_.controls().send(locked, peer, inquiry);
  }
}

void Group::answer(Locked& locked, const Control& inquiry) {
  const bool is_known = inquiry.sequence < sequence_ && sequence_ - inquiry.sequence <= kRemembered;
  if (is_known && calls_[inquiry.sequence % kRemembered] != inquiry.fingerprint) {
    fail(locked,
         Error(ErrorCode::kMismatch,
               "ranks disagree about a collective: " + describe(inquiry.sender) +
                   " waits for a message of " + describe(rank()) + " in " + inquiry.text +
                   ", but there rank " + std::to_string(rank()) +
                   " made another call (a different collective, shape, dtype, root or reduction)",
               inquiry.sender));
  }
}

}  // namespace q7x2
