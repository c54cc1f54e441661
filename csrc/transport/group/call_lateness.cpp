// Which ranks of a group keep the others waiting.
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/log.h"
#include "transport/group/call_agreement.h"
#include "transport/group/membership.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kWarningLooks{100};
// At most one warning per group in this time.
constexpr std::chrono::seconds kBetweenWarnings{10};
constexpr size_t kMaxNamed = 4;

}  // namespace

std::set<int> CallAgreement::awaited_ranks(Locked& locked, Task& task) const {
  std::set<int> ranks;
  for (const PendingRequest* p = task.record(locked).requests.first(); p != nullptr; p = p->next) {
    if (p->peer >= 0) ranks.insert(p->peer);
  }
  if (ranks.empty() && task.takes_turn()) {
    // The task waits until ranks of this host have read what it wrote to shared memory.
    ranks.insert(members_.host_ranks().begin(), members_.host_ranks().end());
    ranks.erase(members_.rank());
  }
  return ranks;
}

// ----------------------------------------------------------------------------------- who is late

std::set<int> CallAgreement::late_ranks(Locked& locked, Task& task) const {
  const Task::Record& record = task.record(locked);
  if (task.takes_turn() && !record.is_started) {
    // The task waits for its turn.
    Task* const first = turns_.oldest(locked);
    return first != nullptr ? late_ranks(locked, *first)
                            : environment_.failed_calls(locked).unconfirmed_by();
  }
  std::map<int, TimePoint> late;  // since when each is known to be late
  for (const int r : awaited_ranks(locked, task)) {
    const HeardProgress* const heard = heard_of(locked, task, r);
    if (heard != nullptr && heard->progress.names_another(members_.rank())) {
      TimePoint& known = late[heard->progress.waits_for];
      known = std::max(known, heard->at);
    } else if (heard == nullptr || heard->progress.state == CallState::kNotMade) {
      late[r];
    }
  }
  std::set<int> ranks;
  for (const auto& [r, known] : late) {
    const HeardProgress* const own = heard_of(locked, task, r);
    const bool says_otherwise = own != nullptr && known <= own->at + kAnswerTakes &&
                                (own->progress.state != CallState::kNotMade ||
                                 own->progress.names_another(members_.rank()));
    if (!says_otherwise) ranks.insert(r);
  }
  return ranks;
}

/// The last answer of `rank` about `task`; null if there is none, or if `rank` has left an inquiry
/// unanswered for too long.
const HeardProgress* CallAgreement::heard_of(Locked& locked, Task& task, int rank) const {
  const auto asked = unanswered_.find(rank);
  if (asked != unanswered_.end() && Clock::now() > asked->second.since + kAnswerTakes) {
    return nullptr;
  }
  const bool is_call = task.takes_turn();
  const auto& answers = is_call ? heard_ : heard_of_messages_;
  const auto heard = answers.find(rank);
  const bool is_of_this = heard != answers.end() &&
                          (is_call ? heard->second.progress.sequence == task.record(locked).sequence
                                   : heard->second.at >= task.submitted());
  return is_of_this ? &heard->second : nullptr;
}

std::string CallAgreement::why_late(Locked& locked, Task& task, int rank) const {
  const HeardProgress* const heard = heard_of(locked, task, rank);
  const bool has_not_called =
      task.takes_turn() && heard != nullptr && heard->progress.state == CallState::kNotMade;
  const std::string life = environment_.life_of(locked, rank);
  if (!has_not_called) {
    return life.empty() ? "" : ": " + life;
  }
  return ": it has not made this call" + (life.empty() ? "" : ", " + life);
}

CallAgreement::Lateness CallAgreement::lateness(Locked& locked, Task& task) {
  const std::set<int> late = late_ranks(locked, task);
  Lateness lateness;
  size_t named = 0;
  for (const int r : late) {
    if (named++ == kMaxNamed) {
      lateness.text += "; and " + std::to_string(late.size() - kMaxNamed) + " others";
      break;
    }
    lateness.text += "; " + members_.describe(r) + " is late" + why_late(locked, task, r);
  }
  lateness.rank = late.size() == 1 ? *late.begin() : -1;
  return lateness;
}

// ---------------------------------------------------------------------------------------- answers

CallProgress CallAgreement::own_progress(Locked& locked, uint64_t sequence) const {
  Task* const task = turns_.find(locked, sequence);
  if (task == nullptr && sequence < turns_.num_begun()) {
    return {sequence, CallState::kComplete, -1};
  }
  if (task == nullptr) {
    // The program may wait in any group.
    const int here = awaited_rank(locked);
    const int awaited = here >= 0 ? here : environment_.awaited_elsewhere(locked);
    return {sequence, CallState::kNotMade, awaited};
  }
  const std::set<int> late = late_ranks(locked, *task);
  return {sequence, CallState::kWaiting, late.empty() ? -1 : *late.begin()};
}

int CallAgreement::awaited_rank(Locked& locked) const {
  int rank = -1;
  if (awaited_ >= 0) {
    const auto heard = heard_of_messages_.find(awaited_);
    const bool names_another = heard != heard_of_messages_.end() &&
                               heard->second.at >= awaited_since_ &&
                               heard->second.progress.names_another(members_.rank());
    rank = names_another ? heard->second.progress.waits_for : awaited_;
  } else if (environment_.is_waited_for()) {
    const auto tasks = environment_.unfinished(locked);
    const auto oldest = std::ranges::min_element(tasks, {}, &Task::submitted);
    const std::set<int> late =
        oldest != tasks.end() ? late_ranks(locked, **oldest) : std::set<int>();
    rank = late.empty() ? -1 : *late.begin();
  }
  return rank == members_.rank() ? -1 : rank;
}

void CallAgreement::reply(Locked& locked, int rank, uint64_t sequence) {
  const CallProgress progress = own_progress(locked, sequence);
  Control answer = environment_.control_to(rank, ControlType::kAnswer);
  answer.sequence = sequence;
  answer.state = progress.state;
  answer.subject = progress.waits_for;
  if (sequence != kNoCall) {
    if (progress.state != CallState::kNotMade) answer.text = what_it_did(locked, sequence);
    told_[rank] = progress;
  }
  environment_.send(locked, rank, answer);
}

void CallAgreement::hear_answer(Locked& locked, const Control& answer) {
  // An answer that was sent before the call does not say what the call is.
  const bool has_called = answer.state != CallState::kNotMade;
  if (disagreement_ && disagreement_->peer == answer.sender &&
      disagreement_->sequence == answer.sequence && has_called) {
    environment_.fail(locked, disagreement(members_.rank(), "called " + disagreement_->call,
                                           answer.sender, answer.text));
    return;
  }
  unanswered_.erase(answer.sender);
  const bool is_rank = answer.subject >= 0 && answer.subject < members_.world_size();
  const HeardProgress heard{{answer.sequence, answer.state, is_rank ? answer.subject : -1},
                            Clock::now()};
  if (answer.sequence == kNoCall) {
    heard_of_messages_[answer.sender] = heard;
    if (answer.sender == awaited_) correct_answers(locked);
    return;
  }
  heard_[answer.sender] = heard;
  correct_answers(locked);
}

// Answers again if the last answer that a rank got from this one is no longer true.
void CallAgreement::correct_answers(Locked& locked) {
  std::erase_if(told_, [](const auto& each) { return each.second.state == CallState::kComplete; });
  for (const auto& [other, told] : std::map(told_)) {
    if (own_progress(locked, told.sequence) != told) {
      reply(locked, other, told.sequence);
    }
  }
}

void CallAgreement::ask_whom_it_awaits(Locked& locked, int rank) {
  if (environment_.connect(locked, rank)) ask(locked, rank, kNoCall, "the making of another group");
}

std::string CallAgreement::late_behind(Locked& locked, int rank, TimePoint since) const {
  const auto heard = heard_of_messages_.find(rank);
  if (heard == heard_of_messages_.end() || heard->second.at < since ||
      !heard->second.progress.names_another(members_.rank())) {
    return "";
  }
  const int late = heard->second.progress.waits_for;
  const std::string life = environment_.life_of(locked, late);
  return "; " + members_.describe(late) + " of group '" + members_.name() + "' is late" +
         (life.empty() ? "" : ": " + life);
}

void CallAgreement::set_awaited(Locked& locked, int rank) {
  const TimePoint now = Clock::now();
  if (rank != awaited_) {
    awaited_ = rank;
    awaited_since_ = now;
    next_awaited_inquiry_ = now;
    correct_answers(locked);
  }
  if (rank >= 0 && now >= next_awaited_inquiry_) {
    next_awaited_inquiry_ = now + kAsksAgain;
    ask(locked, rank, kNoCall, "the making of the group");
  }
}

// --------------------------------------------------------------------------------------- warnings

void CallAgreement::warn_of_late(Locked& locked, TimePoint now) {
  if (now < next_warning_look_) {
    return;
  }
  next_warning_look_ = now + kWarningLooks;
  correct_answers(locked);
  for (const auto& task : environment_.unfinished(locked)) {
    Task::Record& record = task->record(locked);
    if (now < record.warn_at) continue;
    record.warn_at = TimePoint::max();
    if (now < next_warning_) {
      continue;
    }
    next_warning_ = now + kBetweenWarnings;
    std::array<char, 32> waited;
    std::snprintf(waited.data(), waited.size(), "%.1f",
                  std::chrono::duration<double>(now - task->submitted()).count());
    log(Level::kWarn, task->name() + " has waited " + waited.data() + " s for " +
                          task->waiting_for() + lateness(locked, *task).text);
  }
}

}  // namespace q7x2
