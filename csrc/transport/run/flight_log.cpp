#include "transport/run/flight_log.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <new>
#include <utility>

#include "base/log.h"
#include "ledger/call_signature.h"
#include "transport/group/group.h"
#include "transport/group/membership.h"

namespace q7x2 {
namespace {

int64_t nanoseconds(TimePoint time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// The random number of rank 0's process and its number of the group. Two groups do not share both
// for long.
std::string identity_of(const PeerInfo& first) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%08" PRIx32 ".%u",
                static_cast<uint32_t>(first.process >> 32 ^ first.process), unsigned{first.slot});
  return text.data();
}

}  // namespace

void FlightLog::open(Locked&, int slot, const Membership& members,
                     const std::vector<uint64_t>& job_ranks) {
  FlightGroup group;
  group.name = members.name();
  group.identity = identity_of(members.peer_info(0));
  group.rank = members.rank();
  for (int r = 0; r < members.world_size(); ++r) {
    const PeerInfo& peer_info = members.peer_info(r);
    const auto index = static_cast<size_t>(r);
    group.members.push_back({index < job_ranks.size() ? job_ranks[index] : index, peer_info.process,
                             peer_info.pid, peer_info.hostname});
  }
  groups_[static_cast<size_t>(slot)] = recorder_.open(std::move(group));
}

void FlightLog::close(Locked&, int slot) {
  recorder_.close(std::exchange(groups_[static_cast<size_t>(slot)], 0));
}

void FlightLog::failed(Locked&, int slot, const Error& error) {
  FlightGroup* const known = recorder_.find_group(groups_[static_cast<size_t>(slot)]);
  if (known == nullptr || known->failure) return;
  known->failure = {error.code(), error.rank(), error.what(), nanoseconds(Clock::now())};
  if (writer_ != nullptr) {
    writer_->request("group '" + known->name + "' failed: " + error.what());
  }
  if (feed_) feed_->wake();
}

void FlightLog::describe(FlightRecord& record, const Task::Record& kept, Task& task) {
  record.group = kept.flight_group;
  record.submitted = nanoseconds(task.submitted());
  record.timeout_ms =
      static_cast<uint32_t>(std::clamp<int64_t>(task.timeout().count(), 0, UINT32_MAX));
  task.describe(record);
}

FlightRecord FlightLog::made_again(Locked& locked, Task& task) const {
  const Task::Record& kept = task.record(locked);
  FlightRecord record;
  record.id = kept.flight;
  record.sequence = kept.sequence;
  record.state = kept.is_started ? FlightRecord::State::kStarted : FlightRecord::State::kSubmitted;
  if (task.done() && task.error()) record.state = FlightRecord::State::kFailed;
  describe(record, kept, task);
  if (kept.is_started) record.started = nanoseconds(kept.started);
  return record;
}

FlightRecord* FlightLog::record_of(Locked& locked, Task& task) {
  Task::Record& kept = task.record(locked);
  FlightRecord* record = recorder_.find(kept.flight);
  if (kept.flight == 0 && kept.flight_group != 0 && task.is_recorded()) {
    record = &recorder_.add();
    kept.flight = record->id;
    record->sequence = kept.sequence;
    describe(*record, kept, task);
    if (record->kind != FlightRecord::Kind::kCollective) {
      FlightGroup* const group =
          recorder_.find_group(record->group);  // null: the group closed long ago
      if (group != nullptr) record->sequence = group->messages++;
    }
  }
  if (record != nullptr && kept.is_started && record->started == 0) {
    record->state = FlightRecord::State::kStarted;
    if (task.takes_turn()) record->sequence = kept.sequence;
    record->started = nanoseconds(kept.started);
  }
  return record;
}

void FlightLog::report(Locked& locked, FlightRecord& record, Task& task) {
  const Task::Record& kept = task.record(locked);
  task.report(record, recorder_.names());
  record.traffic = kept.traffic;
  record.waited = kept.waits.nanoseconds();
  const WaitMeter::Share longest = kept.waits.longest();
  record.waited_for = longest.rank;
  if (longest.nanoseconds > 0) {
    record.waited_share = static_cast<uint8_t>(100 * longest.nanoseconds / record.waited);
  }
}

void FlightLog::finished(Locked& locked, Task& task) {
  std::optional<FlightRecord> again;
  FlightRecord* record = record_of(locked, task);
  if (task.record(locked).flight == 0) return;
  if (record == nullptr) record = &again.emplace(made_again(locked, task));  // the counters need it
  record->finished = nanoseconds(task.finished());
  if (record->state != FlightRecord::State::kFailed) {
    report(locked, *record, task);
    record->state = FlightRecord::State::kDone;
    record->progressed = record->finished;
  }
  recorder_.count(*record);
}

void FlightLog::failed(Locked& locked, Task& task) {
  FlightRecord* const record = record_of(locked, task);
  if (record == nullptr) return;
  report(locked, *record, task);
  record->state = FlightRecord::State::kFailed;
  record->error = task.error()->code();
  recorder_.add_waits(record->id) = waits_of(locked, task);
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

FlightWaits FlightLog::waits_of(Locked& locked, Task& task) {
  FlightWaits waits;
  const Group& group = task.group();
  for (const PendingRequest* p = task.record(locked).requests.first(); p != nullptr; p = p->next) {
    FlightWaits::Wait wait{.rank = p->peer, .is_receive = p->is_receive};
    if (p->wire == Wire::kPrivate) {
      wait.via = FlightWaits::Via::kPrivateLink;
    } else if (p->wire == Wire::kStream) {
      wait.via = FlightWaits::Via::kStreams;
    } else if (p->request == nullptr && p->peer >= 0 && group.messages().shares_memory(p->peer)) {
      wait.via = FlightWaits::Via::kSharedMemory;
    }
    waits.add(wait);
  }
  return waits;
}

std::string FlightLog::call_text(Locked&, int slot, uint64_t sequence) const {
  const uint32_t group = groups_[static_cast<size_t>(slot)];
  const FlightRecord* const call = group == 0 ? nullptr : recorder_.find_call(group, sequence);
  if (call == nullptr) return "";
  const std::string codec(recorder_.names().name_of(call->codec));
  return call_signature(*call, {}, codec.empty() ? "" : ", codec " + codec);
}

void FlightLog::copy_to(Locked& locked, const std::vector<std::shared_ptr<Task>>& active,
                        FlightSnapshot& copy) {
  for (const std::shared_ptr<Task>& task : active) {
    const uint64_t id = task->record(locked).flight;
    if (task->is_over(locked) || id == 0) continue;
    FlightRecord* record = recorder_.find(id);
    if (record == nullptr) {  // newer records have replaced it, but an unfinished task matters most
      record = &copy.records.emplace_back(made_again(locked, *task));
    }
    report(locked, *record, *task);
    copy.waits[id] = waits_of(locked, *task);
  }
  copy.process = process_;
  recorder_.copy_to(copy);
}

void FlightLog::stamp(FlightBatch& batch) const {
  batch.process = process_;
  batch.steady_now = nanoseconds(Clock::now());
  batch.wall_now =
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

FlightBatch FlightLog::counters(Locked&, bool reset) {
  FlightBatch batch;
  stamp(batch);
  FlightReader(recorder_).read_groups(batch);
  if (reset) recorder_.reset_counters(batch.steady_now);
  return batch;
}

void FlightLog::follow(Locked&, std::shared_ptr<LedgerFeed> feed) {
  if (feed_ == feed || !recorder_.is_enabled()) return;
  feed_ = std::move(feed);
  reader_.emplace(recorder_);
}

FlightBatch FlightLog::read(ReactorLock& lock) {
  constexpr size_t kAtOnce = 256;  // records per lock, because other threads wait for it
  FlightBatch batch;
  {
    const Locked locked(lock);
    if (reader_) reader_->read_pending(batch);
  }
  for (bool is_more = true; is_more;) {
    const Locked locked(lock);
    if (!reader_) break;
    is_more = reader_->read_new(batch, kAtOnce);
    if (is_more) continue;
    reader_->read_groups(batch);
    stamp(batch);
  }
  return batch;
}

void FlightLog::end_feed(Locked&) {
  if (!feed_) return;
  try {
    FlightBatch batch;
    reader_->read_pending(batch);
    reader_->read_new(batch, recorder_.capacity());
    reader_->read_groups(batch);
    stamp(batch);
    feed_->add(std::move(batch));
  } catch (const std::bad_alloc&) {
    log(Level::kWarn, "there is no memory for the last records of the ledger");
  }
}

}  // namespace q7x2
