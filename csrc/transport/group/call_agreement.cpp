// Whether all ranks of a group make the same calls.
#include "transport/group/call_agreement.h"

#include <algorithm>

#include "transport/group/membership.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

// A collective that has waited for this long asks some of the ranks that it waits for whether they
// have made the same call.
constexpr std::chrono::milliseconds kFirstPatience{10};
// After this time, or a quarter of its timeout, a call asks all ranks that it waits for.
constexpr std::chrono::milliseconds kPatience{500};
// Before that, it asks at most this many ranks.
constexpr size_t kFirstAsked = 8;
// For servers. A call waits at most two seconds for a server that has stopped.
constexpr std::chrono::milliseconds kServerPatience{1500};
constexpr std::chrono::milliseconds kServersAreAsked{200};
// At most this many inquiries to one rank are unanswered. Otherwise a rank that is stopped would
// get inquiries from every call that waits for it, until its queue is full.
constexpr size_t kMostUnanswered = 4;
// How long a rank that has received a message which does not fit waits for the sender's answer what
// it called.
constexpr std::chrono::milliseconds kAnswerPatience{100};

/// The name of a call without its rank and group: "broadcast (sequence 3, 4 bytes, root 0)". The
/// error about a disagreement names these itself.
std::string without_place(const std::string& call) {
  return call.substr(0, call.find(" on rank "));
}

/// The time after which a call asks all ranks that it waits for.
std::chrono::milliseconds patience_of(const Task& task) {
  const bool has_deadline = task.timeout() > std::chrono::milliseconds::zero();
  return has_deadline ? std::min(kPatience, task.timeout() / 4) : kPatience;
}

}  // namespace

void CallAgreement::housekeep(Locked& locked, TimePoint now) {
  warn_of_late(locked, now);
  if (disagreement_ && now >= disagreement_->due) {
    environment_.fail(
        locked, disagreement(members_.rank(), "called " + disagreement_->call, disagreement_->peer,
                             "made another call, and did not say which"));
    return;
  }
  if (turns_.num_running() > 0) finds_leftover(locked, turns_.oldest_number(locked));
  inquire(locked, now);
}

// ------------------------------------------------------------------ messages that nobody receives

// With this, a root that no other rank takes for the root learns of the disagreement. `oldest`:
// number of the oldest collective that is not complete.
bool CallAgreement::finds_leftover(Locked& locked, uint64_t oldest) {
  bool found = false;
  environment_.find_unexpected(locked, [&](uint64_t tag, int sender) {
    found = is_leftover(locked, tag, sender, oldest);
    return found;
  });
  return found;
}

bool CallAgreement::hear_unexpected(Locked& locked, uint64_t tag, int sender) {
  const uint64_t number = tag::number_near(turns_.num_begun(), tag);
  if (environment_.failed_calls(locked).find(number) != nullptr) return false;
  is_leftover(locked, tag, sender, turns_.oldest_number(locked));
  return true;
}

// If it is a leftover, asks its sender what it called.
bool CallAgreement::is_leftover(Locked& locked, uint64_t tag, int sender, uint64_t oldest) {
  const uint64_t behind = (oldest - tag::sequence_of(tag)) % tag::kSequenceCycle;
  // A sender may be far ahead of this rank, so most of the cycle of numbers means "ahead".
  if (!environment_.is_usable(locked) || behind == 0 || behind > kLeftoverWindow ||
      behind > oldest || sender >= members_.world_size() ||
      environment_.failed_calls(locked).find(oldest - behind) != nullptr) {
    return false;
  }
  ask_what_it_called(locked, sender, oldest - behind);
  return true;
}

// ----------------------------------------------------------------------- ranks that wait and ask

TimePoint CallAgreement::first_inquiry(const Task& task) {
  const auto patience = patience_of(task);
  return task.submitted() + (task.takes_turn() ? std::min(kFirstPatience, patience) : patience);
}

// If ranks disagree about a call, all of them may wait while none sends, so no message reveals it.
// Then each waits for another one in a circle, and any inquiry along the circle finds the
// disagreement. So a call that has waited for a moment asks the next few ranks that it waits for.
// It asks again each time its waiting time has doubled, and in the end it asks all. The answers
// also say which rank keeps the others waiting (call_lateness.cpp). Answers about messages say
// nothing else.
void CallAgreement::inquire(Locked& locked, TimePoint now) {
  std::optional<int> still;
  for (const auto& task : environment_.unfinished(locked)) {
    Task::Record& record = task->record(locked);
    if (!record.is_started || now < record.next_inquiry) continue;
    const auto waited = now - task->submitted();
    const uint64_t sequence = task->takes_turn() ? record.sequence : kNoCall;
    const std::set<int> awaited = awaited_ranks(locked, *task);
    auto next = awaited.upper_bound(members_.rank());
    const size_t asked = waited < patience_of(*task) ? kFirstAsked : awaited.size();
    bool will_answer = false;  // whether a rank that was asked before may still answer
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
    environment_.fail(locked, Error(ErrorCode::kPeerFailed,
                                    members_.describe(*still) + " does not respond", *still));
  }
}

Clock::duration CallAgreement::until_next_inquiry(const Task& task, Clock::duration waited,
                                                  bool will_answer) {
  if (will_answer) return kAnswerTakes / 10;
  if (task.takes_turn()) return waited;
  return std::max<Clock::duration>(kAsksAgain, waited / 4);
}

bool CallAgreement::ask(Locked& locked, int rank, uint64_t sequence, const std::string& call) {
  const auto found = unanswered_.find(rank);
  const bool owes_answers =
      found != unanswered_.end() && found->second.inquiries >= kMostUnanswered;
  if (!owes_answers) send_inquiry(locked, rank, sequence, call);
  return !owes_answers;
}

void CallAgreement::send_inquiry(Locked& locked, int rank, uint64_t sequence,
                                 const std::string& call) {
  if (!environment_.is_member(locked, rank)) return;
  Control inquiry = environment_.control_to(rank, ControlType::kInquiry);
  inquiry.sequence = sequence;
  inquiry.fingerprint = sequence == kNoCall ? 0 : calls_[sequence % kRemembered];
  inquiry.text = call;
  ++unanswered_.try_emplace(rank, UnansweredInquiries{Clock::now()}).first->second.inquiries;
  environment_.send(locked, rank, inquiry);
}

void CallAgreement::hear_inquiry(Locked& locked, const Control& inquiry) {
  const uint64_t sequence = inquiry.sequence;
  const uint64_t begun = turns_.num_begun();
  const bool is_known = sequence < begun && begun - sequence <= kRemembered;
  const bool has_failed = environment_.failed_calls(locked).find(sequence) != nullptr;
  if (is_known && !has_failed && calls_[sequence % kRemembered] != inquiry.fingerprint) {
    environment_.fail(locked, disagreement(inquiry.sender, "called " + inquiry.text,
                                           members_.rank(), what_it_did(locked, sequence)));
  } else if (environment_.is_usable(locked)) {
    reply(locked, inquiry.sender, sequence);
  }
}

// --------------------------------------------------------------------- messages that do not fit

void CallAgreement::ask_what_it_called(Locked& locked, int peer, uint64_t sequence) {
  if (disagreement_ || !environment_.is_usable(locked)) return;
  disagreement_ = {peer, sequence, call_name(locked, sequence), Clock::now() + kAnswerPatience};
  // The peer compares the calls, and fails the group with both names; or it answers with its own
  // call.
  if (environment_.connect(locked, peer)) {
    send_inquiry(locked, peer, sequence, disagreement_->call);
  }
}

Error CallAgreement::disagreement(int a, const std::string& what_a_did, int b,
                                  const std::string& what_b_did) const {
  const std::string of_a = without_place(what_a_did);
  const std::string of_b = without_place(what_b_did);
  // Differences that do not show in the name of a call.
  const std::string hint = of_a == of_b
                               ? ". They differ in the lengths of their parts, in the edges that "
                                 "are compressed, or in what precedes them"
                               : "";
  return Error(ErrorCode::kMismatch,
               "ranks disagree about a collective (a different collective, shape, dtype, root, "
               "split, reduction, device or q7x2.collectives.algorithm): " +
                   members_.describe(a) + " " + of_a + ", but " + members_.describe(b) + " " +
                   of_b + hint,
               a == members_.rank() ? b : a);
}

// The name of collective number `sequence`, which this rank has called. If the collective is
// complete, the name comes from the flight recorder, unless that is disabled.
std::string CallAgreement::call_name(Locked& locked, uint64_t sequence) const {
  if (const Task* const task = turns_.find(locked, sequence)) return task->name();
  const std::string call = environment_.call_text(locked, sequence);
  return call.empty() ? "a collective that is complete" : call;
}

std::string CallAgreement::what_it_did(Locked& locked, uint64_t sequence) const {
  const std::string call = without_place(call_name(locked, sequence));
  const Task* const next = turns_.oldest(locked);
  const std::string later = next == nullptr ? "" : without_place(next->name());
  // A collective that prepares a call has the call's name.
  const bool went_on =
      turns_.find_running(locked, sequence) == nullptr && next != nullptr && later != call;
  return "called " + call + (went_on ? ", and went on to " + later : "");
}

}  // namespace q7x2
