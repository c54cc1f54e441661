// RowAggregator: adds up the rows of one stream of a sparse all-reduce as they arrive.
//
// Each message of a rank says which row the rank has next. The smallest of these numbers over all
// ranks is the frontier. All rows before it are complete, and are added in rank order, whenever
// they arrived. Then exactly the ranks whose next row is at the frontier are asked for more. A rank
// that is ahead has rows waiting here: at most one message.
//
//   rank 0   rows 0 3 4, next 9            frontier 6: rows 0 1 3 4 are complete
//   rank 1   rows 1 3,   next 6    ->      rank 1 is asked
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "executor/sparse/row_message.h"
#include "plan/ir/row_streams.h"

namespace q7x2 {

/// The position after the last row of a stream; 0 if it has no rows.
uint64_t end_of_stream(const RowStreams& streams, int owner, size_t stream);

class RowAggregator {
 public:
  struct Rows {
    DType dtype = DType::kFloat32;
    size_t bytes = 0;                 ///< bytes of a row
    size_t in_message = 1;            ///< the largest number of rows in a message
    uint64_t end = RowStreams::kEnd;  ///< the position after the last row
    int divisor = 1;                  ///< sums are divided by it
    bool is_dense = false;            ///< see RowSource::is_dense
  };

  RowAggregator(Rows rows, int world_size);

  /// All rows before this position were added up. RowStreams::kEnd: all rows.
  uint64_t frontier() const { return frontier_; }
  /// Whether the rank is asked for its next message.
  bool asks(int rank) const { return next_[static_cast<size_t>(rank)] == frontier_; }

  /// Takes the answer of `rank`. The bytes must stay valid until all their rows are added up.
  /// Returns false if they are not a valid message of this stream.
  bool take(int rank, std::span<const std::byte> bytes);
  /// Adds up the rows that are complete. Requires that all ranks that were asked have answered, and
  /// that the messages of the last call are not needed any more.
  void fold();
  /// The messages with the result of the last `fold`: at least one.
  std::span<const std::span<const std::byte>> messages() const { return messages_; }

 private:
  struct Contribution {
    std::vector<uint64_t> positions;
    const std::byte* rows = nullptr;
    size_t begin = 0;  // number of rows that were added up
  };
  /// A position and a rank, ordered by position first.
  using Head = std::pair<uint64_t, size_t>;

  void add_row(uint64_t position);
  void begin_message();
  /// Whether the ranks should send their next rows without testing them for zeros.
  bool decides_to_take_all(uint64_t from);

  const Rows rows_;
  uint64_t frontier_ = 0;
  std::vector<uint64_t> next_;  // by rank
  std::vector<Contribution> contributions_;
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads_;
  std::vector<const void*> sources_;
  std::vector<std::byte> zeros_;

  std::vector<std::unique_ptr<std::byte[]>> memory_;  // by message
  std::vector<RowWriter> writers_;
  size_t writers_used_ = 0;
  std::vector<std::span<const std::byte>> messages_;
  size_t added_ = 0;        // number of rows of all ranks in the last `fold`
  int unmeasured_ = 0;      // number of folds that took all rows since the density was measured
  bool takes_all_ = false;  // whether the ranks send rows of zeros, too
};

}  // namespace q7x2
