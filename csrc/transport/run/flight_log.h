// FlightLog: records what tasks and groups do in the flight recorder, and asks for dumps.
//
//   Group::submit    a task of a recorded group is admitted. If it has to wait, it gets its record
//                    here, with its own description (Task::describe)
//   Group::begin     the task has started; from now on it has a record
//   Task::publish    the task is done or has failed; a failure keeps which messages it waited for
//
// A task that need not wait for its turn gets its record after its first messages have been sent,
// so that these do not wait for the record's memory.
//
// A ledger may follow the recorder: see LedgerFeed.
//
// The first failure of a group is written to Q7X2_DUMP, and so is the first message of a group
// whose deadline passes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ledger/dump_writer.h"
#include "ledger/flight_reader.h"
#include "ledger/flight_recorder.h"
#include "ledger/flight_settings.h"
#include "ledger/ledger_feed.h"
#include "transport/task/task.h"
#include "transport/ucx/tag.h"

namespace q7x2 {

class Membership;

class FlightLog {
 public:
  FlightLog(const FlightSettings& settings, uint64_t process)
      : recorder_(settings.capacity), process_(process) {}
  FlightLog(const FlightLog&) = delete;
  FlightLog& operator=(const FlightLog&) = delete;

  /// From now on dumps go to `writer`, which must live until it is replaced. Null: nothing is
  /// dumped.
  void write_to(Locked&, DumpWriter* writer) { writer_ = writer; }

  /// From now on the tasks of the group in `slot` are recorded, if the recorder is enabled.
  /// `job_ranks`: the members' ranks in the default group; empty if unknown.
  void open(Locked&, int slot, const Membership& members, const std::vector<uint64_t>& job_ranks);
  void close(Locked&, int slot);
  void failed(Locked&, int slot, const Error& error);

  // The following do nothing if the task's group is not recorded.

  void admit(Locked& locked, Task& task, int slot) {
    task.record(locked).flight_group = groups_[static_cast<size_t>(slot)];
  }
  void submitted(Locked& locked, Task& task) { record_of(locked, task); }
  void started(Locked& locked, Task& task) { record_of(locked, task); }
  /// To be called before the task's requests are cancelled, because they say what it waited for.
  void failed(Locked& locked, Task& task);
  void finished(Locked& locked, Task& task);
  /// Called now and then if the task has sent or received since the last call.
  void progressed(Locked& locked, Task& task, TimePoint now);

  /// The call that collective number `sequence` of the slot's group was, or prepared, such as
  /// "all_reduce (sequence 12, 4096 bytes of float32, sum)". Empty if unknown. Searches all
  /// records, so it is for failures only.
  std::string call_text(Locked&, int slot, uint64_t sequence) const;

  /// Copies everything to `copy`. `active`: tasks in progress, which report their progress first.
  /// `copy` must have reserved memory for the records, so that nothing is allocated here.
  void copy_to(Locked& locked, const std::vector<std::shared_ptr<Task>>& active,
               FlightSnapshot& copy);
  size_t capacity() const { return recorder_.capacity(); }

  /// The counters of all known groups, per group. With `reset`, they restart at zero.
  FlightBatch counters(Locked& locked, bool reset);

  /// From now on `feed` follows the recorder. Does nothing if it already does, or if the recorder
  /// is disabled.
  void follow(Locked&, std::shared_ptr<LedgerFeed> feed);
  /// For the feed that follows: what is new. Takes the lock several times, each time briefly.
  FlightBatch read(ReactorLock& lock);
  /// Gives the remaining records to the feed, and keeps the feed's identity: if the same feed is
  /// attached again, it gets no record twice. To be called once nothing is recorded any more.
  void end_feed(Locked& locked);

 private:
  void stamp(FlightBatch& batch) const;
  /// The task's record; a new one, filled with what is known, if it had none. Null if the task is
  /// not recorded, or if a newer record has replaced its record.
  FlightRecord* record_of(Locked& locked, Task& task);
  static void describe(FlightRecord& record, const Task::Record& kept, Task& task);
  /// A record for a task whose own was replaced by a newer record.
  FlightRecord made_again(Locked& locked, Task& task) const;
  /// What the task has done so far.
  void report(Locked& locked, FlightRecord& record, Task& task);
  /// Which messages the task waits for.
  static FlightWaits waits_of(Locked& locked, Task& task);

  FlightRecorder recorder_;
  const uint64_t process_;
  std::array<uint32_t, tag::kMaxGroups> groups_{};  // by slot; 0: not recorded
  DumpWriter* writer_ = nullptr;
  std::shared_ptr<LedgerFeed> feed_;    // null: nobody follows
  std::optional<FlightReader> reader_;  // for `feed_`
};

}  // namespace q7x2
