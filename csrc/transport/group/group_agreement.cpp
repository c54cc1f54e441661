// Whether all ranks of a group make the same calls.
//
// Ranks that disagree about a message find out when it meets its receive. What follows finds the
// rest: a message that nobody receives, and ranks that all wait while none sends.
#include <algorithm>

#include "transport/group/group.h"
#include "transport/run/runtime.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

// After so long, or a quarter of its deadline, a call asks all that it waits for.
constexpr std::chrono::milliseconds kPatience{500};
// Before that at most so many.
constexpr size_t kFirstAsked = 8;
// So many inquiries may be on their way to a rank. One that is stopped would get one for each call
// that waits for it, again and again, until its queue is full.
constexpr size_t kMostUnanswered = 4;
// How long a rank that has met a message which does not fit waits to hear what its sender called.
constexpr std::chrono::milliseconds kAnswerPatience{100};

/// What names a call, without the rank and the group: "broadcast (sequence 3, 4 bytes, root 0)". A
/// disagreement names them itself.
std::string without_place(const std::string& call) {
  return call.substr(0, call.find(" on rank "));
}

}  // namespace

void Group::housekeep(Locked& locked, TimePoint now) {
  if (error_) {
    drop_mail(locked);  // what came over a private link
  }
  warn_of_late(locked, now);
  if (disagreement_ && now >= disagreement_->due) {
    fail(locked, disagreement(rank(), "called " + disagreement_->call, disagreement_->peer,
                              "made another call, and did not say which"));
    return;
  }
  if (running_ > 0) {
    finds_leftover(locked, oldest_running(locked));
  }
  inquire(locked, now);
}

// ------------------------------------------------------------------ messages that nobody receives

// With others in progress, the one that is complete last asks, and housekeeping before that.
bool Group::finds_leftover(Locked& locked) {
  return running_ == 1 && finds_leftover(locked, sequence_);
}

// So a root that nobody else takes for the root learns of it. `oldest` is the number of the oldest
// collective that is not complete.
bool Group::finds_leftover(Locked& locked, uint64_t oldest) {
  bool found = false;
  if (matcher_) {
    matcher_->find_unexpected(locked, [&](uint64_t tag, int sender) {
      found = is_leftover(locked, tag, sender, oldest);
      return found;
    });
  }
  if (!found) {
    const auto tag = runtime_.reactor().find_unexpected(
        locked, tag::base(tag::Kind::kCollective, slot_, 0), tag::kKindMask | tag::kSlotMask);
    found = tag && is_leftover(locked, *tag, tag::source_of(*tag, world_size()), oldest);
  }
  return found;
}

// If it is, its sender is asked what it called.
bool Group::is_leftover(Locked& locked, uint64_t tag, int sender, uint64_t oldest) {
  const uint64_t behind = (oldest - tag::sequence_of(tag)) % tag::kSequenceCycle;
  // A sender may be far ahead, so most of the cycle means that.
  if (error_ || behind == 0 || behind > kLeftoverWindow || behind > oldest ||
      sender >= world_size()) {
    return false;
  }
  ask_what_it_called(locked, sender, oldest - behind);
  return true;
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

std::chrono::milliseconds Group::patience_of(const Task& task) {
  const bool has_deadline = task.timeout() > std::chrono::milliseconds::zero();
  return has_deadline ? std::min(kPatience, task.timeout() / 4) : kPatience;
}

// Ranks that disagree about a call may all wait and none send, where no message tells them. Then
// each waits for another one in a circle, and any question in it finds the disagreement. So a call
// that has waited for a moment asks the next few ranks that it waits for, and again each time that
// it has waited for twice as long; in the end all of them. The answers also say who keeps the
// others waiting (group_lateness.cpp); that is all that those say which are about messages.
void Group::inquire(Locked& locked, TimePoint now) {
  std::optional<int> still;
  for (const auto& task : runtime_.tasks().active(locked)) {
    Task::Record& record = task->record(locked);
    if (&task->group() != this || !record.is_started || task->is_over(locked) ||
        now < record.next_inquiry) {
      continue;
    }
    const auto waited = now - task->submitted();
    const uint64_t sequence = task->takes_turn() ? record.sequence : kNoCall;
    const std::set<int> awaited = awaited_ranks(locked, *task);
    auto next = awaited.upper_bound(rank());
    const size_t asked = waited < patience_of(*task) ? kFirstAsked : awaited.size();
    bool will_answer = false;  // others first
    for (size_t i = 0; i < std::min(asked, awaited.size()); ++i, ++next) {
      if (next == awaited.end()) next = awaited.begin();
      will_answer |= !ask(locked, *next, sequence, task->name()) &&
                     now < unanswered_.at(*next).since + kAnswerTakes;
    }
    record.next_inquiry = now + until_next_inquiry(*task, waited, will_answer);
    if (task->is_attempt()) {
      record.next_inquiry = std::min(record.next_inquiry, now + kServersAreAsked);
    }
    for (const int r : awaited) {
      const auto silent = unanswered_.find(r);
      if (r >= task->first_server() && silent != unanswered_.end() &&
          now > silent->second.since + kServerPatience) {
        still = r;
      }
    }
  }
  if (still) {
    fail(locked, Error(ErrorCode::kPeerFailed, describe(*still) + " stands still", *still));
  }
}

Clock::duration Group::until_next_inquiry(const Task& task, Clock::duration waited,
                                          bool will_answer) {
  if (will_answer) return kAnswerTakes / 10;
  if (task.takes_turn()) return waited;
  return std::max<Clock::duration>(kAsksAgain, waited / 4);
}

bool Group::ask(Locked& locked, int rank, uint64_t sequence, const std::string& call) {
  const auto found = unanswered_.find(rank);
  const bool owes_answers =
      found != unanswered_.end() && found->second.inquiries >= kMostUnanswered;
  if (!owes_answers) send_inquiry(locked, rank, sequence, call);
  return !owes_answers;
}

void Group::send_inquiry(Locked& locked, int rank, uint64_t sequence, const std::string& call) {
  Peer& peer = members_.peer(rank);
  if (has_left(rank) || !peer.life.is_alive()) {
    return;
  }
  Control inquiry = control_to(rank, ControlType::kInquiry);
  inquiry.sequence = sequence;
  inquiry.fingerprint = sequence == kNoCall ? 0 : calls_[sequence % kRemembered];
  inquiry.text = call;
  ++unanswered_.try_emplace(rank, UnansweredInquiries{Clock::now()}).first->second.inquiries;
  runtime_.controls().send(locked, peer, inquiry);
}

void Group::answer(Locked& locked, const Control& inquiry) {
  const uint64_t sequence = inquiry.sequence;
  const bool is_known = sequence < sequence_ && sequence_ - sequence <= kRemembered;
  if (is_known && calls_[sequence % kRemembered] != inquiry.fingerprint) {
    fail(locked, disagreement(inquiry.sender, "called " + inquiry.text, rank(),
                              what_it_did(locked, sequence)));
  } else if (!error_ && !closed_) {
    reply(locked, inquiry.sender, sequence);
  }
}

// -------------------------------------------------------------------------- messages that do not
// fit

void Group::disagree(Locked& locked, Task& task, int peer) {
  ask_what_it_called(locked, peer, task.record(locked).sequence);
}

void Group::ask_what_it_called(Locked& locked, int peer, uint64_t sequence) {
  if (disagreement_ || error_) {
    return;
  }
  disagreement_ = {peer, sequence, call_name(locked, sequence), Clock::now() + kAnswerPatience};
  // It compares the calls, and fails the group with both names; or it answers with its own.
  if (connect(locked, peer)) {
    send_inquiry(locked, peer, sequence, disagreement_->call);
  }
}

Error Group::disagreement(int a, const std::string& what_a_did, int b,
                          const std::string& what_b_did) const {
  const std::string of_a = without_place(what_a_did);
  const std::string of_b = without_place(what_b_did);
  // What no name of a call has.
  const std::string hint = of_a == of_b
                               ? ". They differ in the lengths of their parts, in the edges that "
                                 "are compressed, or in what precedes them"
                               : "";
  return Error(ErrorCode::kMismatch,
               "ranks disagree about a collective (a different collective, shape, dtype, root, "
               "split, reduction, device or q7x2.collectives.algorithm): " +
                   describe(a) + " " + of_a + ", but " + describe(b) + " " + of_b + hint,
               a == rank() ? b : a);
}

// Collective number `sequence`, which this rank has called. A complete one is known to the flight
// recorder, if that is not switched off.
std::string Group::call_name(Locked& locked, uint64_t sequence) const {
  if (const Task* const task = find_running(locked, sequence)) {
    return task->name();
  }
  if (sequence >= sequence_ && sequence - sequence_ < waiting_.size()) {
    return waiting_[sequence - sequence_]->name();
  }
  const std::string call = runtime_.flights().call_text(locked, flight_, sequence);
  return call.empty() ? "a collective that is complete" : call;
}

std::string Group::what_it_did(Locked& locked, uint64_t sequence) const {
  const std::string call = without_place(call_name(locked, sequence));
  const Task* const next = find_running(locked, oldest_running(locked));
  const std::string later = next == nullptr ? "" : without_place(next->name());
  // What precedes a call is named as the call is.
  const bool went_on =
      find_running(locked, sequence) == nullptr && next != nullptr && later != call;
  return "called " + call + (went_on ? ", and went on to " + later : "");
}

}  // namespace q7x2
