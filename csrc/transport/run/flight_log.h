// FlightLog: records what tasks and groups do in the flight recorder, and asks for dumps.
//
//   Group::submit    it is recorded, if its group is. It has a record, with what the task says of
//                    itself (Task::describe), if it waits
//   Group::begin     it has started, and has a record from now on
//   Task::publish    it is done or has failed; a failure keeps which messages it waited for
//
// A task that does not wait for its turn gets its record when its first messages are on their way:
// they should not wait for the memory of the record.
//
// A ledger may follow the recorder: see LedgerFeed.
//
// A group that fails is written to Q7X2_DUMP once, and so is the first of its messages whose
// deadline passes.
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

  /// Dumps go to `writer` from here on; null: nowhere. It must stay until then.
  void write_to(Locked&, DumpWriter* writer) { writer_ = writer; }

  /// From here on the tasks of the group in `slot` are recorded, unless nothing is. `job_ranks`:
  /// the members' ranks in the default group; empty: they are not known.
  void open(Locked&, int slot, const Membership& members, const std::vector<uint64_t>& job_ranks);
  void close(Locked&, int slot);
  void failed(Locked&, int slot, const Error& error);

  // Nothing, if the task's group is not recorded.

  void admit(Locked& locked, Task& task, int slot) {
    task.record(locked).flight_group = groups_[static_cast<size_t>(slot)];
  }
  void submitted(Locked& locked, Task& task) { record_of(locked, task); }
  void started(Locked& locked, Task& task) { record_of(locked, task); }
  /// While what it waits for is still known.
  void failed(Locked& locked, Task& task);
  void finished(Locked& locked, Task& task);
  /// Now and then: the task has sent or received since the last call.
  void progressed(Locked& locked, Task& task, TimePoint now);

  /// "all_reduce (sequence 12, 4096 bytes of float32, sum)": the call of the slot's group that
  /// collective number `sequence` was, or prepared. Empty: it is not known. For a failure: it takes
  /// some time.
  std::string call_text(Locked&, int slot, uint64_t sequence) const;

  /// A copy of everything. `active`: tasks in progress, which are asked how far they are. `copy`
  /// comes with memory for the records, so that none is allocated here.
  void copy_to(Locked& locked, const std::vector<std::shared_ptr<Task>>& active,
               FlightSnapshot& copy);
  size_t capacity() const { return recorder_.capacity(); }

  /// The counters of all groups that are known, by group. `reset`: they begin again.
  FlightBatch counters(Locked& locked, bool reset);

  /// From here on `feed` follows the recorder. Nothing if it does already, or nothing is recorded.
  void follow(Locked&, std::shared_ptr<LedgerFeed> feed);
  /// For whoever follows: what is new. Takes the lock several times, each time for a short while.
  FlightBatch read(ReactorLock& lock);
  /// Leaves the rest to the one who follows, and goes on to know who that is: a feed that is
  /// attached again has nothing twice. To be called once nothing is recorded any more.
  void end_feed(Locked& locked);

 private:
  void stamp(FlightBatch& batch) const;
  /// A new one if it has none, with what is known by now. Null: it is not recorded, or its record
  /// has made room for another.
  FlightRecord* record_of(Locked& locked, Task& task);
  static void describe(FlightRecord& record, const Task::Record& kept, Task& task);
  /// Of a task whose record has made room for another.
  FlightRecord made_again(Locked& locked, Task& task) const;
  /// What the task has done so far.
  void report(Locked& locked, FlightRecord& record, Task& task);
  /// Which messages the task waits for.
  static FlightWaits waits_of(Locked& locked, Task& task);

  FlightRecorder recorder_;
  const uint64_t process_;
  std::array<uint32_t, tag::kMaxGroups> groups_{};  // by slot; 0: it is not recorded
  DumpWriter* writer_ = nullptr;
  std::shared_ptr<LedgerFeed> feed_;    // null: nobody follows
  std::optional<FlightReader> reader_;  // for the one who follows
};

}  // namespace q7x2
