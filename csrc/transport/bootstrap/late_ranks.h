// LateRanks: who keeps the ranks of a new group waiting, in warnings and errors.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/bootstrap/member_monitor.h"

namespace q7x2 {

/// "rank 3", "ranks 3, 5".
std::string list_ranks(const std::vector<int>& ranks);

class LateRanks {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  /// Those that are late. Costs a question to the store for each that may be.
  using Missing = std::function<std::vector<int>()>;

  struct Options {
    int rank = 0;
    int size = 1;
    std::string group;  ///< its name
    std::chrono::milliseconds timeout{0};
    MemberMonitor* monitor = nullptr;         ///< null: nobody knows whom a late rank waits for
    std::function<std::string(int)> explain;  ///< what is known of a rank, to be added to the error
  };

  explicit LateRanks(Options options);

  /// A wait begins that ends at `deadline` at the latest.
  void begin(TimePoint deadline);
  /// Now and then during the wait. Asks ranks that are late whom they wait for themselves, and
  /// warns of them, once a wait each.
  void look(TimePoint now, const Missing& missing);
  /// `ranks` have not done what they were waited for: " did not join".
  std::string describe(const std::vector<int>& ranks, const std::string& what) const;

 private:
  std::string behind(const std::vector<int>& ranks) const;

  const Options options_;
  TimePoint warns_at_ = TimePoint::max();
  TimePoint asks_at_ = TimePoint::max();
};

}  // namespace q7x2
