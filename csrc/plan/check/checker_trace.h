// Trace: follows one result back through the ranks that it passed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/recent.h"
#include "plan/check/checker_group.h"
#include "plan/ir/schedule.h"

namespace q7x2::checker {

class Trace {
 public:
  /// Projects Plans with at most `max_ops` ops in total, one after the other.
  Trace(const Schedule& schedule, size_t max_ops);

  /// Throws Error(kInternal) if the output part of a receiver is not what the contract promises.
  /// Returns false if `max_ops` is not enough to know.
  bool check(int rank, int part);

 private:
  /// A Plan with an index of its ops. The ops are in an order in which they may run.
  struct Indexed {
    explicit Indexed(Plan of);

    Plan plan;
    std::map<std::pair<int, int>, uint32_t> sends;  // by receiver and message id
  };
  /// A block as an op sees it, after all earlier ops have run.
  struct Read {
    int rank;
    Block block;
    size_t op;
  };

  /// Null if no ops are left.
  std::shared_ptr<const Indexed> find(int rank);
  std::optional<size_t> last_write(const Indexed& at, const Read& read) const;
  void add_leaf(int rank, int part, const Read& read);
  void check_leaves(int rank, int part) const;

  const Schedule& schedule_;
  const Plan header_;
  CheckedGroup group_;
  Recent<int, std::shared_ptr<const Indexed>> plans_;
  size_t ops_left_;
  RankSet leaves_;
  int num_finals_ = 0;
};

}  // namespace q7x2::checker
