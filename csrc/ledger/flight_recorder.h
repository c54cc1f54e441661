// FlightRecorder: what the operations of this process did, the last few thousand of them.
//
// A ring with one record per operation. The record is written when the operation is submitted, when
// it starts, and when it is done or has failed; the oldest one makes room for the next. Counters
// per group and kind of operation add up all of them. Recording allocates nothing and takes no
// lock: all calls are made under the reactor's lock, and a dump copies the ring first
// (FlightSnapshot).
//
// Groups are described once, when they are made. A group that is closed is forgotten, with its
// counters, when the ring holds no operation of it any more.
#pragma once

#include <array>
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

/// A process group, as a dump describes it.
struct FlightGroup {
  struct Member {
    uint64_t job_rank = 0;  ///< in the default group, as far as that is known
    uint64_t process = 0;
    int32_t pid = 0;
    std::string host;
  };
  struct Failure {
    ErrorCode code = ErrorCode::kInternal;
    int rank = -1;  ///< in the group: who caused it; -1: nobody in particular
    std::string text;
    int64_t at = 0;  ///< nanoseconds of the steady clock
  };

  std::string name;
  std::string identity;  ///< equal on all ranks, and unique: a group's name may be used again
  int rank = 0;
  std::vector<Member> members;  ///< by rank in the group
  bool is_open = true;
  std::optional<Failure> failure;
  uint64_t messages = 0;  ///< point-to-point messages so far
  bool has_late_message = false;
};

/// A copy of what the recorder holds, to be written without a lock.
struct FlightSnapshot {
  std::string reason;  ///< why it was taken
  uint64_t process = 0;
  int64_t steady_now = 0;  ///< nanoseconds
  int64_t wall_now = 0;    ///< the same moment, nanoseconds since 1970
  size_t capacity = 0;
  uint64_t recorded = 0;  ///< operations so far; the ring may hold fewer
  std::map<uint32_t, FlightGroup> groups;
  NameTable names;                        ///< of algorithms and codecs
  std::vector<FlightRecord> records;      ///< the oldest first
  std::map<uint64_t, FlightWaits> waits;  ///< by record

  /// The rank of this process in its job: RANK, or as its first group says; -1: there is none.
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

  /// Returns the number by which records name the group. 0 if nothing is recorded.
  uint32_t open(FlightGroup group);
  void close(uint32_t group);
  /// Null: it is not known.
  FlightGroup* find_group(uint32_t group);
  const std::map<uint32_t, FlightGroup>& groups() const { return groups_; }

  NameTable& names() { return names_; }
  const NameTable& names() const { return names_; }

  /// A new, empty record with its `id`. Only if enabled.
  FlightRecord& add();
  /// Null: it has made room for another one.
  FlightRecord* find(uint64_t id) {
    if (id == 0) return nullptr;
    FlightRecord& record = ring_[(id - 1) % ring_.size()];
    return record.id == id ? &record : nullptr;
  }
  /// Counts an operation that is over.
  void count(const FlightRecord& record);
  /// Null: the group is not known.
  const GroupCounters* find_counters(uint32_t group) const;
  /// All counters are zero from here on. `now`: of the steady clock.
  void reset_counters(int64_t now);
  /// Since when operations are counted: the last reset, in nanoseconds of the steady clock; 0: the
  /// beginning.
  int64_t counted_since() const { return counted_since_; }

  /// What a failed operation waited for, to be filled in. The last kFailures are kept.
  FlightWaits& add_waits(uint64_t id);
  static constexpr size_t kFailures = 256;

  /// The call of the group that collective number `sequence` was, or prepared. Null: it has made
  /// room for others. Looks through all records.
  const FlightRecord* find_call(uint32_t group, uint64_t sequence) const;
  /// Appends all records to the copy, the oldest first, with what is known of their groups, their
  /// names and their waits.
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
  // The one that counted last.
  uint32_t counting_group_ = 0;
  GroupCounters* counting_ = nullptr;
  int64_t counted_since_ = 0;
  uint32_t last_group_ = 0;
  std::vector<Failure> failures_;
  size_t next_failure_ = 0;
};

}  // namespace q7x2
