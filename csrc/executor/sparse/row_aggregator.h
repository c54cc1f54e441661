// RowAggregator: adds up one stream of a sparse all-reduce, as its rows arrive.
//
// Every rank says with each message which row it has next. All rows before the least of these, the
// frontier, are complete: they are added in rank order, whenever they arrived. Then exactly the
// ranks whose next row lies at the frontier are asked for more. A rank that is ahead keeps its
// rows waiting here, one message at most.
//
//   rank 0   rows 0 3 4, next 9            frontier 6: rows 0 1 3 4 are complete
//   rank 1   rows 1 3,   next 6    ->      rank 1 is asked
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "executor/sparse/row_message.h"
#include "plan/ir/row_streams.h"

namespace q7x2 {

/// The position behind the last row of a stream; 0: it has no row.
uint64_t end_of_stream(const RowStreams& streams, int owner, size_t stream);

class RowAggregator {
 public:
  struct Rows {
    DType dtype = DType::kFloat32;
    size_t bytes = 0;                 ///< of a row
    size_t in_message = 1;            ///< rows at most
    uint64_t end = RowStreams::kEnd;  ///< the position behind the last row
    int divisor = 1;                  ///< of the sums
    bool is_dense = false;            ///< see RowSource::is_dense
  };

  RowAggregator(Rows rows, int world_size);

  /// All rows before this position have been added up. RowStreams::kEnd: all.
  uint64_t frontier() const { return frontier_; }
  /// Whether the rank is asked for its next message.
  bool asks(int rank) const { return next_[static_cast<size_t>(rank)] == frontier_; }

  /// The answer of `rank`; the bytes must stay until all their rows are added up. False: they are
  /// no message of such a stream.
  bool take(int rank, std::span<const std::byte> bytes);
  /// Adds up what is complete. Only when all that are asked have answered, and the messages of the
  /// last call are not needed any more.
  void fold();
  /// The result of the last `fold`: one message at least.
  std::span<const std::span<const std::byte>> messages() const { return messages_; }

 private:
  struct Contribution {
    std::vector<uint64_t> positions;
    const std::byte* rows = nullptr;
    size_t begin = 0;  // rows before it are added up
  };
  /// Ordered by the position, and then by the rank.
  using Head = std::pair<uint64_t, size_t>;

  void add_row(uint64_t position);
  void begin_message();
  /// Whether the ranks are to send their next rows without looking for zeros.
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
  size_t added_ = 0;        // rows of all ranks in the last call
  int unmeasured_ = 0;      // calls that have taken all rows since the density was measured
  bool takes_all_ = false;  // the messages to come have rows of zeros too
};

}  // namespace q7x2
