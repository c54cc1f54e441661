// Machines: hosts that share their cores, as containers and virtual hosts of one machine do.
#pragma once

#include <string>
#include <vector>

#include "fabric/fabric.h"

namespace q7x2 {

struct Machine {
  std::string name;  ///< "h0", "h0+h1"
  int cores = 1;
  int ranks = 0;

  /// Ranks take turns.
  bool is_crowded() const { return ranks > cores; }
};

class Machines {
 public:
  explicit Machines(const Fabric& fabric);

  const std::vector<Machine>& all() const { return all_; }
  /// Index of the machine of a rank.
  size_t of(int rank) const { return of_rank_[static_cast<size_t>(rank)]; }
  bool is_crowded(int rank) const { return all_[of(rank)].is_crowded(); }
  /// Ranks for each core where there are most, and at least 1.
  double most_turns() const;

 private:
  std::vector<Machine> all_;
  std::vector<size_t> of_rank_;
};

}  // namespace q7x2
