// StoreWait: how a rank waits for something in a store that is asked.
//
// A store cannot be told to wake a rank in all its kinds, so the rank asks, pauses, and asks again.
// It asks often at first, the less so the longer it waits, and the less so the more ranks there
// are. Where an answer takes long, it gives the others time to react before the first question:
//
//   set ......... pause . question ............ answer       instead of
//   set . question ............ no . question ............ answer
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "transport/bootstrap/key_store.h"
#include "transport/bootstrap/late_ranks.h"

namespace q7x2 {

class StoreWait {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  /// Asks the store whether the wait is over.
  using Asks = std::function<bool()>;
  /// Looks around at a pause. `is_thorough`: a slice is over. True: the wait is pointless.
  using Look = std::function<bool(bool is_thorough)>;
  enum class End { kDone, kPointless, kLate };

  struct Options {
    int size = 1;                        ///< of the group
    std::chrono::microseconds pause{0};  ///< between two questions, after a while
    std::chrono::milliseconds slice{0};
    TimePoint deadline;
  };

  StoreWait(KeyStore& store, LateRanks& late, const Options& options)
      : store_(store), late_(late), options_(options) {}

  /// `missing`: for warnings, see LateRanks.
  End run(const Asks& asks, const Look& look, const LateRanks::Missing& missing);
  /// How long a rank pauses: 5 ms for up to 25 ranks, which may all be on one host; 10 ms from 50
  /// ranks on; and then as long as keeps the store at 50,000 questions per second.
  static std::chrono::microseconds pause_of(int size);

 private:
  std::chrono::microseconds pause(TimePoint started) const;

  KeyStore& store_;
  LateRanks& late_;
  const Options options_;
  std::chrono::steady_clock::duration answer_takes_{0};  // the last one
};

}  // namespace q7x2
