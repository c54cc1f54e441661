#include "transport/flight_log.h"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "ledger/call_signature.h"
#include "transport/group.h"
#include "transport/membership.h"

namespace q7x2 {
namespace {

int64_t nanoseconds(TimePoint time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// Rank 0's process and its number of the group: no two groups have both in common for long.
std::string identity_of(const Card& first) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%08" PRIx32 ".%u",
                static_cast<uint32_t>(first.process >> 32 ^ first.process), unsigned{first.slot});
  return text.data();
}

}  // namespace

uint32_t FlightLog::open(Locked&, const Membership& members,
                         const std::vector<uint64_t>& job_ranks) {
  FlightGroup group;
  group.name = members.name();
  group.identity = identity_of(members.card(0));
  group.rank = members.rank();
  for (int r = 0; r < members.world_size(); ++r) {
    const Card& card = members.card(r);
    const auto index = static_cast<size_t>(r);
    group.members.push_back({index < job_ranks.size() ? job_ranks[index] : index, card.process,
                             card.pid, card.hostname});
  }
  return recorder_.open(std::move(group));
}

void FlightLog::failed(Locked&, uint32_t group, const Error& error) {
  FlightGroup* const known = recorder_.find_group(group);
  if (known == nullptr || known->failure) return;
  known->failure = {error.code(), error.rank(), error.what(), nanoseconds(Clock::now())};
  if (writer_ != nullptr) {
    writer_->request("group '" + known->name + "' failed: " + error.what());
  }
}

void FlightLog::describe(FlightRecord& record, Task& task) const {
  record.group = task.group().flight();
  record.submitted = nanoseconds(task.submitted());
  record.timeout_ms = task.timeout().count();
  task.describe(record);
}

void FlightLog::submitted(Locked& locked, Task& task) {
  if (task.group().flight() == 0 || !task.is_recorded()) return;
  FlightRecord& record = recorder_.add();
  Task::Record& kept = task.record(locked);
  kept.flight = record.id;
  record.sequence = kept.sequence;
  describe(record, task);
  if (record.kind != FlightRecord::Kind::kCollective) {
    record.sequence = recorder_.find_group(record.group)->messages++;
  }
}

void FlightLog::started(Locked& locked, Task& task) {
  Task::Record& kept = task.record(locked);
  FlightRecord* const record = recorder_.find(kept.flight);
  if (record == nullptr) return;
  record->state = FlightRecord::State::kStarted;
  if (task.takes_turn()) record->sequence = kept.sequence;
  // A task that did not have to wait for its turn spares a look at the clock.
  record->started = kept.has_waited ? nanoseconds(Clock::now()) : record->submitted;
}

void FlightLog::finished(Locked& locked, Task& task) {
  FlightRecord* const record = recorder_.find(task.record(locked).flight);
  if (record == nullptr) return;
  record->finished = nanoseconds(task.finished());
  if (record->state == FlightRecord::State::kFailed) return;
  task.report(*record);
  record->state = FlightRecord::State::kDone;
  record->progressed = record->finished;
}

void FlightLog::failed(Locked& locked, Task& task) {
  FlightRecord* const record = recorder_.find(task.record(locked).flight);
  if (record == nullptr) return;
  task.report(*record);
  record->state = FlightRecord::State::kFailed;
  record->error = task.error()->code();
  add_waits(locked, *record, task);
  FlightGroup* const group = recorder_.find_group(record->group);
  const bool is_late = record->error == ErrorCode::kTimeout && !task.takes_turn();
  if (is_late && writer_ != nullptr && group != nullptr && !group->has_late_message) {
    group->has_late_message = true;
    writer_->request("a deadline passed: " + std::string(task.error()->what()));
  }
}

void FlightLog::progressed(Locked& locked, Task& task, TimePoint now) {
  if (FlightRecord* const record = recorder_.find(task.record(locked).flight)) {
    record->progressed = nanoseconds(now);
  }
}

void FlightLog::add_waits(Locked& locked, FlightRecord& record, Task& task) {
  record.num_waits = 0;
  const Group& group = task.group();
  for (const PendingRequest* p = task.record(locked).requests.first(); p != nullptr; p = p->next) {
    FlightRecord::Wait wait{.rank = p->peer, .is_receive = p->is_receive};
    if (p->wire == Wire::kPrivate) {
      wait.via = FlightRecord::Via::kPrivateLink;
    } else if (p->request == nullptr && p->peer >= 0 && group.shares_memory(p->peer)) {
      wait.via = FlightRecord::Via::kSharedMemory;
    }
    record.add_wait(wait);
  }
}

std::string FlightLog::call_text(Locked&, uint32_t group, uint64_t sequence) const {
  const FlightRecord* const call = group == 0 ? nullptr : recorder_.find_call(group, sequence);
  return call == nullptr ? "" : call_signature(*call);
}

void FlightLog::copy_to(Locked& locked, const std::vector<std::shared_ptr<Task>>& active,
                        FlightSnapshot& copy) {
  for (const std::shared_ptr<Task>& task : active) {
    const uint64_t id = task->record(locked).flight;
    if (task->is_over(locked) || id == 0) continue;
    FlightRecord* record = recorder_.find(id);
    if (record == nullptr) {  // many have come since, but this is the one that matters
      record = &copy.records.emplace_back();
      record->id = id;
      record->sequence = task->record(locked).sequence;
      record->state = task->record(locked).is_started ? FlightRecord::State::kStarted
                                                      : FlightRecord::State::kSubmitted;
      describe(*record, *task);
      if (task->record(locked).is_started) record->started = record->submitted;
    }
    task->report(*record);
    add_waits(locked, *record, *task);
  }
  copy.process = process_;
  copy.capacity = recorder_.capacity();
  copy.recorded = recorder_.recorded();
  copy.groups = recorder_.groups();
  recorder_.copy_to(copy.records);
}

}  // namespace q7x2
