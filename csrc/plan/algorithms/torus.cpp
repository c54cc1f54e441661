// clang-format off
// Torus: the ranks as a grid of a rows and b columns; each part of the data is folded along the
// rows first, then along one column.
//
//   0 -> 1 -> 2      all_reduce, b = 3, part 2: every row folds it towards column 2, and column 2
//             |      towards its middle. The result takes the opposite way: along the column, and
//             v      then along the rows. So both directions of every wire are in use, and all rows
//   3 -> 4 -> 5      and all columns at the same time.
//             ^
//             |      Rows are rings: part 0 takes 1 -> 2 -> 0. Near ranks are in one row; a row may
//   6 -> 7 -> 8      be a host, if all hosts have the same number of ranks.
// clang-format on
//
//   collective       steps                    bytes sent by a rank at most    (B: the whole buffer)
//   all_reduce       2 (b-1) + 2 floor(a/2)   2 B
//   reduce_scatter   (a-1) + (b-1)            B (n-1)/n
//   all_gather       (a-1) + (b-1)            B (n-1)/n
//
// It sends about the ring's bytes in about sqrt(8 n) steps instead of 2 n, only over links between
// neighbours, and with b messages per neighbour instead of n: the choice for large data if a ring
// is too long. The parameter is b, the number of columns. A column passes one part, so it is a path
// and no ring; consecutive slices keep all of it busy.
// Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", 2018
// (2D-torus all-reduce); Ying et al., "Image classification at supercomputer scale", 2018.
#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

/// Ranks in near order, so that neighbours in a row or a column are near each other.
Order line_up(const ScheduleRequest& request) {
  const int columns = request.parameter;
  const int rows = request.world_size / columns;
  std::vector<Talk> talks;
  for (int position = 0; position < rows * columns; ++position) {
    const int row = position / columns;
    const int column = position % columns;
    talks.push_back({position, row * columns + (column + 1) % columns});
    const bool is_last = row + 1 == rows;
    // Only collectives with one part per rank use the columns as rings.
    if (is_last && request.collective == Collective::kAllReduce) continue;
    talks.push_back({position, (is_last ? 0 : row + 1) * columns + column, 1.0 / columns});
  }
  return arranged(request, near_order(request), talks);
}

/// Ranks in near order, row by row.
class Grid {
 public:
  explicit Grid(const ScheduleRequest& request)
      : order_(line_up(request)),
        columns_(request.parameter),
        rows_(request.world_size / request.parameter) {}

  /// Whether positions equal ranks.
  bool is_plain() const { return std::ranges::is_sorted(order_.ranks()); }
  int rows() const { return rows_; }
  int columns() const { return columns_; }
  int at(int row, int column) const { return order_.at(row * columns_ + column); }
  int row_of(int rank) const { return order_.position_of(rank) / columns_; }
  int column_of(int rank) const { return order_.position_of(rank) % columns_; }

  /// A tree in which the row's ring leads to `column`, and `column` continues.
  Branch along_row(int rank, int column) const {
    const int row = row_of(rank);
    const int mine = column_of(rank);
    Branch branch;
    if (mine != column) branch.parent = at(row, (mine + 1) % columns_);
    const int before = (mine + columns_ - 1) % columns_;
    if (before != column) branch.children.push_back(at(row, before));
    return branch;
  }

  /// One circulation of all rows: each rank sends to the next one of its row.
  Round rightwards(uint32_t messages, double share) const {
    Round round{.repeats = columns_ - 1};
    for (int row = 0; row < rows_; ++row) {
      for (int column = 0; column < columns_; ++column) {
        round.edges.push_back({at(row, column), at(row, (column + 1) % columns_), messages, share});
      }
    }
    return round;
  }

  /// From one row to the same columns of another row.
  void add_edges(Round& round, int from, int to, double share) const {
    for (int column = 0; column < columns_; ++column) {
      round.edges.push_back({at(from, column), at(to, column), 1, share});
    }
  }

 private:
  Order order_;
  int columns_;
  int rows_;
};

/// The tree of a column's part: rows lead to the column, and the column leads to its middle.
Branch part_branch(const Grid& grid, int column, int rank) {
  Branch branch = grid.along_row(rank, column);
  if (grid.column_of(rank) != column) return branch;
  const int row = grid.row_of(rank);
  const int middle = grid.rows() / 2;
  if (row != middle) branch.parent = grid.at(row < middle ? row + 1 : row - 1, column);
  if (row <= middle && row > 0) branch.children.push_back(grid.at(row - 1, column));
  if (row >= middle && row + 1 < grid.rows()) branch.children.push_back(grid.at(row + 1, column));
  return branch;
}

Schedule all_reduce(const ScheduleRequest& request) {
  const auto grid = std::make_shared<const Grid>(request);
  const int parts = grid->columns();
  Schedule schedule = bare_forest_schedule(
      request, "torus", [grid](int part, int rank) { return part_branch(*grid, part, rank); },
      equal_parts(parts));
  const double share = 1.0 / parts;
  Round row = grid->rightwards(1, share);
  row.folds = true;
  row.contributions = parts / 2.0;
  std::vector<Round> up{row};
  const int middle = grid->rows() / 2;
  for (int step = 0; step < middle; ++step) {
    Round round{.folds = true, .contributions = static_cast<double>(parts) * (step + 1)};
    grid->add_edges(round, step, step + 1, share);
    // The lower arm is as long as the upper one, or shorter by one.
    const int below = middle + (middle - step);
    if (below < grid->rows()) grid->add_edges(round, below, below - 1, share);
    up.push_back(std::move(round));
  }
  for (const Round& round : up) schedule.add_round(round);
  for (Round& round : backwards(up, request.world_size)) {
    round.same_data = false;
    schedule.add_round(std::move(round));
  }
  return schedule;
}

/// The tree of a rank's part: rows lead to its column, and the column's ring to the rank.
Branch rank_branch(const Grid& grid, int part, int rank) {
  Branch branch = grid.along_row(rank, grid.column_of(part));
  if (grid.column_of(rank) != grid.column_of(part)) return branch;
  const auto ring = [&](int steps) {
    const int row = (grid.row_of(rank) + grid.rows() + steps) % grid.rows();
    return grid.at(row, grid.column_of(rank));
  };
  if (rank != part) branch.parent = ring(1);
  if (ring(-1) != part) branch.children.push_back(ring(-1));
  return branch;
}

/// reduce_scatter, or all_gather, which is its reverse.
Schedule by_rank(const ScheduleRequest& request) {
  const auto grid = std::make_shared<const Grid>(request);
  Schedule schedule = bare_forest_schedule(
      request, "torus", [grid](int part, int rank) { return rank_branch(*grid, part, rank); });
  if (grid->is_plain()) schedule.set_turn({.ranks = grid->columns(), .messages_of_parts = true});
  Round row = grid->rightwards(static_cast<uint32_t>(grid->rows()), 1);
  row.folds = true;
  row.contributions = grid->columns() / 2.0;
  Round column{
      .repeats = grid->rows() - 1, .folds = true, .contributions = request.world_size / 2.0};
  for (int from = 0; from < grid->rows(); ++from) {
    grid->add_edges(column, from, (from + 1) % grid->rows(), 1);
  }
  std::vector<Round> rounds{std::move(row), std::move(column)};
  if (request.collective == Collective::kAllGather) {
    rounds = backwards(std::move(rounds), 1);
    for (Round& round : rounds) round.same_data = false;
  }
  for (Round& round : rounds) schedule.add_round(std::move(round));
  return schedule;
}

/// The number of ranks per host, if it is the same for all hosts; otherwise 1.
int ranks_per_host(const ScheduleRequest& request) {
  if (request.fabric == nullptr) return 1;
  std::vector<int> ranks(request.fabric->hosts.size());
  for (const int host : request.fabric->host_of) ++ranks[static_cast<size_t>(host)];
  const bool is_uniform = std::ranges::count(ranks, ranks.front()) == std::ssize(ranks);
  return is_uniform ? ranks.front() : 1;
}

/// The width with the fewest steps, and the width of a host.
std::vector<int> widths(const ScheduleRequest& request) {
  const int n = request.world_size;
  int best = 0;
  int least = std::numeric_limits<int>::max();
  for (int columns = 2; columns <= n / 2; ++columns) {
    if (n % columns != 0) continue;
    const int steps = 2 * (columns - 1) + n / columns / 2 * 2;
    if (steps > least) continue;
    best = columns;
    least = steps;
  }
  std::vector<int> all;
  const int host = ranks_per_host(request);
  if (host > 1 && host <= n / 2 && host != best) all.push_back(host);
  if (best > 0) all.push_back(best);
  return all;
}

}  // namespace

// In collectives with one part per rank, a neighbour gets nearly one message per part.
std::vector<Generator> torus_generators() {
  std::vector<Generator> all{{.name = "torus",
                              .collective = Collective::kAllReduce,
                              .generate = all_reduce,
                              .parameters = widths}};
  for (const Collective op : {Collective::kReduceScatter, Collective::kAllGather}) {
    all.push_back({.name = "torus",
                   .collective = op,
                   .generate = by_rank,
                   .max_world_size = Plan::kMaxMessages,
                   .parameters = widths});
  }
  return all;
}

}  // namespace q7x2
