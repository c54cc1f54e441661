// FlightRecord: the way of one operation, from its submission to its end, as plain bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "base/types.h"

namespace q7x2 {

/// What every operation writes.
struct FlightHead {
  enum class Kind : uint8_t { kCollective, kSend, kReceive };
  enum class State : uint8_t { kSubmitted, kStarted, kDone, kFailed };

  uint64_t id = 0;     ///< among the operations of the process, from 1; 0: there is none
  uint32_t group = 0;  ///< see FlightRecorder::open
  Kind kind = Kind::kCollective;
  State state = State::kSubmitted;
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kBytes;
  ReduceKind reduce = ReduceKind::kSum;
  bool is_internal = false;                ///< q7x2's own: it prepares the call that follows
  ErrorCode error = ErrorCode::kInternal;  ///< if it failed
  int32_t peer = -1;                       ///< the root of a collective, or the peer of a message
  uint32_t tag = 0;                        ///< of a message
  /// Collectives: the same on all ranks. Messages: among those of this rank in the group.
  uint64_t sequence = 0;
  uint64_t input_bytes = 0;
  uint64_t output_bytes = 0;
  uint64_t fingerprint = 0;  ///< collectives: equal on two ranks if they agree about the call

  // Nanoseconds of the steady clock; 0: not yet.
  int64_t submitted = 0;
  int64_t started = 0;
  int64_t progressed = 0;  ///< a message was sent or received; to some milliseconds
  int64_t finished = 0;

  int64_t timeout_ms = 0;
  std::array<char, 32> plan{};  ///< the name of the algorithm, cut to fit; empty: not chosen yet
  uint32_t slices = 0;
  uint32_t slices_done = 0;

  uint32_t num_waits = 0;  ///< see FlightRecord; may be more than there is room for

  bool is_over() const { return state == State::kDone || state == State::kFailed; }

  void set_plan(std::string_view name) {
    const size_t length = std::min(name.size(), plan.size() - 1);
    std::copy_n(name.begin(), length, plan.begin());
    plan[length] = '\0';
  }
  std::string_view plan_name() const { return plan.data(); }
};

/// Waits are written only for a failure or a dump, so that other operations touch less memory.
struct FlightRecord : FlightHead {
  enum class Via : uint8_t { kSharedMemory, kUcx, kPrivateLink };
  /// A message that the operation waits for.
  struct Wait {
    int32_t rank = -1;  ///< in the group; -1: any
    bool is_receive = false;
    Via via = Via::kUcx;
  };
  static constexpr size_t kMostWaits = 8;

  // At the time it failed, or at the time of the snapshot if it is in progress.
  std::array<Wait, kMostWaits> waits{};

  void add_wait(const Wait& wait) {
    const auto end = waits.begin() + std::min<size_t>(num_waits, kMostWaits);
    const bool is_known = std::any_of(waits.begin(), end, [&](const Wait& known) {
      return known.rank == wait.rank && known.is_receive == wait.is_receive;
    });
    if (is_known) return;
    if (num_waits < kMostWaits) waits[num_waits] = wait;
    ++num_waits;
  }
};

static_assert(std::is_trivially_copyable_v<FlightRecord>);

}  // namespace q7x2
