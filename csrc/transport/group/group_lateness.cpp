// Who keeps the ranks of a group waiting.
//
// The rank that a call waits for may itself wait for another one. So a rank that has waited for a
// moment asks (group_agreement.cpp), and the answer says whether its peer has made the call,
// and whom the peer waits for, in this call or in the one that it is still in. A rank whose own
// answer changes tells those who asked. So the name of the rank that is late travels along the
// chain of those who wait: a rank that does not answer, or that neither has made the call nor
// waits. A rank may also stop after it has answered. So it must answer each question, and
// what others say of it counts more than an old answer of its own.
//
// A message is no call of the whole group. A rank that waits for one asks its peer again and again
// whom that waits for.
//
// A rank that is late is not dead. It is named in a warning first, and in the error of the call
// whose deadline passes.
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/log.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kWarningLooks{100};
// At most one warning of a group in this time.
constexpr std::chrono::seconds kBetweenWarnings{10};
constexpr size_t kMaxNamed = 4;

}  // namespace

Task* Group::find_running(Locked& locked, uint64_t sequence) const {
  for (const auto& task : runtime_.tasks().active(locked)) {
    const Task::Record& record = task->record(locked);
    if (&task->group() == this && record.is_started && !task->is_over(locked) &&
        task->takes_turn() && record.sequence == sequence) {
      return task.get();
    }
  }
  return nullptr;
}

std::set<int> Group::awaited_ranks(Locked& locked, Task& task) const {
  std::set<int> ranks;
  for (const PendingRequest* p = task.record(locked).requests.first(); p != nullptr; p = p->next) {
    if (p->peer >= 0) ranks.insert(p->peer);
  }
  if (ranks.empty() && task.takes_turn()) {
    // It waits until ranks of this host have read what it put into shared memory.
    ranks.insert(members_.host_ranks().begin(), members_.host_ranks().end());
    ranks.erase(rank());
  }
  return ranks;
}

// ----------------------------------------------------------------------------------- who is late

std::set<int> Group::late_ranks(Locked& locked, Task& task) const {
  const Task::Record& record = task.record(locked);
  if (task.takes_turn() && !record.is_started) {
    // It waits for its turn.
    Task* const first = find_running(locked, oldest_running(locked));
    return first != nullptr ? late_ranks(locked, *first) : std::set<int>();
  }
  std::map<int, TimePoint> late;  // since when this is known
  for (const int r : awaited_ranks(locked, task)) {
    const HeardProgress* const heard = heard_of(locked, task, r);
    if (heard != nullptr && heard->progress.names_another(rank())) {
      TimePoint& known = late[heard->progress.waits_for];
      known = std::max(known, heard->at);
    } else if (heard == nullptr || heard->progress.state == CallState::kNotMade) {
      late[r];
    }
  }
  std::set<int> ranks;
  for (const auto& [r, known] : late) {
    const HeardProgress* const own = heard_of(locked, task, r);
    const bool says_otherwise =
        own != nullptr && known <= own->at + kAnswerTakes &&
        (own->progress.state != CallState::kNotMade || own->progress.names_another(rank()));
    if (!says_otherwise) ranks.insert(r);
  }
  return ranks;
}

/// What `rank` has said about `task`, if it has, and has not fallen silent since.
const HeardProgress* Group::heard_of(Locked& locked, Task& task, int rank) const {
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

bool Group::ended_late() const {
  return error_ && error_->code() == ErrorCode::kTimeout;
}

std::string Group::why_late(Locked& locked, Task& task, int rank) const {
  const HeardProgress* const heard = heard_of(locked, task, rank);
  const bool has_not_called =
      task.takes_turn() && heard != nullptr && heard->progress.state == CallState::kNotMade;
  const std::string life = runtime_.peers().why_late(locked, members_.peer(rank));
  if (!has_not_called) {
    return life.empty() ? "" : ": " + life;
  }
  return ": it has not made this call" + (life.empty() ? "" : ", " + life);
}

Group::Lateness Group::lateness(Locked& locked, Task& task) {
  const std::set<int> late = late_ranks(locked, task);
  Lateness lateness;
  size_t named = 0;
  for (const int r : late) {
    if (named++ == kMaxNamed) {
      lateness.text += "; and " + std::to_string(late.size() - kMaxNamed) + " others";
      break;
    }
    lateness.text += "; " + describe(r) + " is late" + why_late(locked, task, r);
  }
  lateness.rank = late.size() == 1 ? *late.begin() : -1;
  return lateness;
}

// ---------------------------------------------------------------------------------------- answers

CallProgress Group::own_progress(Locked& locked, uint64_t sequence) const {
  Task* task = find_running(locked, sequence);
  if (task == nullptr && sequence >= sequence_ && sequence - sequence_ < waiting_.size()) {
    task = waiting_[sequence - sequence_].get();  // waits for its turn
  }
  if (task == nullptr) {
    return sequence < sequence_ ? CallProgress{sequence, CallState::kComplete, -1}
                                : CallProgress{sequence, CallState::kNotMade, awaited_now(locked)};
  }
  const std::set<int> late = late_ranks(locked, *task);
  return {sequence, CallState::kWaiting, late.empty() ? -1 : *late.begin()};
}

/// Because of whom the program does not go on, whatever group it waits in; -1: because of no member
/// of this one, as far as this is known.
int Group::awaited_now(Locked& locked) const {
  const Peer* peer = awaited_peer(locked);
  if (peer == nullptr) peer = runtime_.groups().awaited_peer(locked);
  return peer == nullptr ? -1 : members_.rank_of(peer->info.process);
}

const Peer* Group::awaited_peer(Locked& locked) const {
  const int rank = awaited_here(locked);
  return rank < 0 || rank == this->rank() ? nullptr : &members_.peer(rank);
}

int Group::awaited_here(Locked& locked) const {
  if (awaited_ >= 0) {
    const auto heard = heard_of_messages_.find(awaited_);
    const bool names_another = heard != heard_of_messages_.end() &&
                               heard->second.at >= awaited_since_ &&
                               heard->second.progress.names_another(rank());
    return names_another ? heard->second.progress.waits_for : awaited_;
  }
  if (!is_waited_for()) {
    return -1;
  }
  Task* oldest = nullptr;
  for (const auto& task : runtime_.tasks().active(locked)) {
    if (&task->group() == this && !task->is_over(locked) &&
        (oldest == nullptr || task->submitted() < oldest->submitted())) {
      oldest = task.get();
    }
  }
  const std::set<int> late = oldest != nullptr ? late_ranks(locked, *oldest) : std::set<int>();
  return late.empty() ? -1 : *late.begin();
}

void Group::reply(Locked& locked, int rank, uint64_t sequence) {
  const CallProgress progress = own_progress(locked, sequence);
  Control answer = control_to(rank, ControlType::kAnswer);
  answer.sequence = sequence;
  answer.state = progress.state;
  answer.subject = progress.waits_for;
  if (sequence != kNoCall) {
    if (progress.state != CallState::kNotMade) answer.text = what_it_did(locked, sequence);
    told_[rank] = progress;
  }
  runtime_.controls().send(locked, members_.peer(rank), answer);
}

void Group::hear_answer(Locked& locked, const Control& answer) {
  // An answer from before the call, on its way since then, does not say what the call is.
  const bool has_called = answer.state != CallState::kNotMade;
  if (disagreement_ && disagreement_->peer == answer.sender &&
      disagreement_->sequence == answer.sequence && has_called) {
    fail(locked, disagreement(rank(), "called " + disagreement_->call, answer.sender, answer.text));
    return;
  }
  unanswered_.erase(answer.sender);
  const bool is_rank = answer.subject >= 0 && answer.subject < world_size();
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

// Those who asked this rank, and were told otherwise.
void Group::correct_answers(Locked& locked) {
  std::erase_if(told_, [](const auto& each) { return each.second.state == CallState::kComplete; });
  for (const auto& [other, told] : std::map(told_)) {
    if (own_progress(locked, told.sequence) != told) {
      reply(locked, other, told.sequence);
    }
  }
}

void Group::ask_whom_it_awaits(Locked& locked, int rank) {
  if (connect(locked, rank)) ask(locked, rank, kNoCall, "the making of another group");
}

std::string Group::late_behind(Locked& locked, int rank, TimePoint since) const {
  const auto heard = heard_of_messages_.find(rank);
  if (heard == heard_of_messages_.end() || heard->second.at < since ||
      !heard->second.progress.names_another(this->rank())) {
    return "";
  }
  const int late = heard->second.progress.waits_for;
  const std::string life = runtime_.peers().why_late(locked, members_.peer(late));
  return "; " + describe(late) + " of group '" + name() + "' is late" +
         (life.empty() ? "" : ": " + life);
}

void Group::set_awaited(int rank) {
  Locked locked(runtime_.lock());
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

void Group::warn_of_late(Locked& locked, TimePoint now) {
  if (now < next_warning_look_) {
    return;
  }
  next_warning_look_ = now + kWarningLooks;
  correct_answers(locked);
  for (const auto& task : runtime_.tasks().active(locked)) {
    Task::Record& record = task->record(locked);
    if (&task->group() != this || task->is_over(locked) || now < record.warn_at) {
      continue;
    }
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
