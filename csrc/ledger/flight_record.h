// FlightRecord: the history of one operation, from its submission to its end, as plain bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "base/types.h"
#include "ledger/traffic.h"
#include "ledger/work_times.h"

namespace q7x2 {

struct FlightRecord {
  enum class Kind : uint8_t { kCollective, kSend, kReceive };
  enum class State : uint8_t { kSubmitted, kStarted, kDone, kFailed };

  uint64_t id = 0;     ///< number of the operation in the process, from 1; 0: none
  uint32_t group = 0;  ///< see FlightRecorder::open
  Kind kind = Kind::kCollective;
  State state = State::kSubmitted;
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kBytes;
  ReduceKind reduce = ReduceKind::kSum;
  bool is_internal = false;  ///< an operation of q7x2 itself, which prepares the call that follows
  uint8_t waited_share = 0;  ///< percentage of `waited` that was for `waited_for`
  ErrorCode error = ErrorCode::kInternal;  ///< if it failed
  int32_t peer = -1;                       ///< the root of a collective, or the peer of a message
  uint32_t tag = 0;                        ///< tag of a message
  uint32_t timeout_ms = 0;
  int32_t waited_for = -1;  ///< the rank whose messages it waited for longest; -1: none, or several
  /// Collectives: the same on all ranks. Messages: counts this rank's messages in the group.
  uint64_t sequence = 0;
  uint64_t input_bytes = 0;
  uint64_t output_bytes = 0;
  uint64_t fingerprint = 0;  ///< collectives: equal on two ranks if they agree about the call

  // Nanoseconds of the steady clock; 0: not yet.
  int64_t submitted = 0;
  int64_t started = 0;
  int64_t progressed = 0;  ///< last time a message was sent or received; exact to some milliseconds
  int64_t finished = 0;

  uint32_t slices = 0;
  uint32_t slices_done = 0;

  WorkTimes work;
  Traffic traffic;
  int64_t waited = 0;   ///< nanoseconds; see WaitMeter
  float predicted = 0;  ///< seconds that the planner expects; 0: not asked
  uint16_t plan = 0;    ///< the algorithm, see FlightRecorder::names; 0: not chosen yet
  uint16_t codec = 0;   ///< the same for the codec; 0: none

  bool is_over() const { return state == State::kDone || state == State::kFailed; }
  /// Time from the start to the end of an operation that is over, in nanoseconds.
  int64_t duration() const { return started == 0 ? 0 : finished - started; }
};

static_assert(std::is_trivially_copyable_v<FlightRecord>);
static_assert(sizeof(FlightRecord) <= 200, "records are many, and each passes through the cache");

/// The messages that an operation waits for: when it failed, or, if it is in progress, at the time
/// of a snapshot. They are stored separately, so that other operations use less memory.
struct FlightWaits {
  enum class Via : uint8_t { kSharedMemory, kUcx, kPrivateLink, kStreams };
  struct Wait {
    int32_t rank = -1;  ///< in the group; -1: any
    bool is_receive = false;
    Via via = Via::kUcx;
  };
  static constexpr size_t kMost = 8;

  std::array<Wait, kMost> waits{};
  uint32_t count = 0;  ///< may be more than the number that is stored

  void add(const Wait& wait) {
    const auto end = waits.begin() + std::min<size_t>(count, kMost);
    const bool is_known = std::any_of(waits.begin(), end, [&](const Wait& known) {
      return known.rank == wait.rank && known.is_receive == wait.is_receive;
    });
    if (is_known) return;
    if (count < kMost) waits[count] = wait;
    ++count;
  }
};

}  // namespace q7x2
