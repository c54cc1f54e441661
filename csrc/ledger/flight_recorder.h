// FlightRecorder: records of the last few thousand operations of this process.
//
// It is a ring with one record per operation. The record is written when the operation is
// submitted, when it starts, and when it is done or has failed; a new record replaces the oldest.
// Counters per group and kind of operation cover all operations. Recording allocates nothing and
// takes no lock: all functions are called under the reactor's lock, and a dump copies the ring
// first (FlightSnapshot).
//
// Groups are described once, when they are made. A closed group is forgotten, with its counters,
// when the ring contains no operation of it any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ledger/flight_record.h"
#include "ledger/name_table.h"
#include "ledger/operation_counters.h"

namespace q7x2 {

/// A process group as described in a dump.
struct FlightGroup {
  struct Member {
    uint64_t job_rank = 0;  ///< rank in the default group, if it is known
    uint64_t process = 0;
    int32_t pid = 0;
    std::string host;
  };
  struct Failure {
    ErrorCode code = ErrorCode::kInternal;
    int rank = -1;  ///< rank in the group that caused it; -1: no particular one
    std::string text;
    int64_t at = 0;  ///< nanoseconds of the steady clock
  };

  std::string name;
  /// equal on all ranks, and unique, because a group's name may be used again
  std::string identity;
  int rank = 0;
  std::vector<Member> members;  ///< by rank in the group
  bool is_open = true;
  std::optional<Failure> failure;
  uint64_t messages = 0;  ///< number of point-to-point messages
  bool has_late_message = false;
};

/// A copy of the recorder's contents, to be written without a lock.
struct FlightSnapshot {
  std::string reason;  ///< why it was taken
  uint64_t process = 0;
  int64_t steady_now = 0;  ///< nanoseconds
  int64_t wall_now = 0;    ///< the same moment, nanoseconds since 1970
  size_t capacity = 0;
  uint64_t recorded = 0;  ///< total number of operations; the ring may contain fewer
  std::map<uint32_t, FlightGroup> groups;
  NameTable names;                        ///< names of algorithms and codecs
  std::vector<FlightRecord> records;      ///< the oldest first
  std::map<uint64_t, FlightWaits> waits;  ///< by record

  /// The rank of this process in its job: RANK, or the rank in its first group; -1: none.
  int64_t job_rank() const;
};

class FlightRecorder {
 public:
  static constexpr size_t kDefaultCapacity = 2000;
  static constexpr size_t kMostCapacity = 1'000'000;

  /// `capacity`: records in the ring; 0: nothing is recorded.
  explicit FlightRecorder(size_t capacity);

  bool is_enabled() const { return !ring_.empty(); }
  size_t capacity() const { return ring_.size(); }
  uint64_t recorded() const { return recorded_; }

  /// Returns the number of the group for records; 0 if nothing is recorded.
  uint32_t open(FlightGroup group);
  void close(uint32_t group);
  /// Null if the group is unknown.
  FlightGroup* find_group(uint32_t group);
  const std::map<uint32_t, FlightGroup>& groups() const { return groups_; }

  NameTable& names() { return names_; }
  const NameTable& names() const { return names_; }

  /// A new, empty record with its `id`. Requires that recording is enabled.
  FlightRecord& add();
  /// Null if a newer record has replaced it.
  FlightRecord* find(uint64_t id) {
    if (id == 0) return nullptr;
    FlightRecord& record = ring_[(id - 1) % ring_.size()];
    return record.id == id ? &record : nullptr;
  }
  /// Counts an operation that is over.
  void count(const FlightRecord& record);
  /// Null if the group is unknown.
  const GroupCounters* find_counters(uint32_t group) const;
  /// Sets all counters to zero. `now`: of the steady clock.
  void reset_counters(int64_t now);
  /// Time since which operations are counted: the last reset, in nanoseconds of the steady clock;
  /// 0: since the start.
  int64_t counted_since() const { return counted_since_; }

  /// The messages that a failed operation waited for, to be filled in. The last kFailures are kept.
  FlightWaits& add_waits(uint64_t id);
  static constexpr size_t kFailures = 256;

  /// The call of the group that collective number `sequence` was, or prepared. Null if newer
  /// records have replaced it. Searches all records.
  const FlightRecord* find_call(uint32_t group, uint64_t sequence) const;
  /// Appends all records to the copy, the oldest first, with their groups, names and waits.
  void copy_to(FlightSnapshot& copy) const;

 private:
  struct Failure {
    uint64_t id = 0;
    FlightWaits waits;
  };

  void forget_closed_groups();

  std::vector<FlightRecord> ring_;
  uint64_t recorded_ = 0;
  NameTable names_;
  std::map<uint32_t, FlightGroup> groups_;
  std::map<uint32_t, std::unique_ptr<GroupCounters>> counters_;
  // The group that was counted last.
  uint32_t counting_group_ = 0;
  GroupCounters* counting_ = nullptr;
  int64_t counted_since_ = 0;
  uint32_t last_group_ = 0;
  std::vector<Failure> failures_;
  size_t next_failure_ = 0;
};

}  // namespace q7x2
