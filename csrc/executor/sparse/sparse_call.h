// SparseCall: the rows and the meaning of one sparse all-reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/types.h"
#include "executor/sparse/row_census.h"
#include "plan/ir/row_streams.h"

namespace q7x2 {

class RowSource;

/// How calls of blocks are called in messages, and their algorithms in the ledger.
inline constexpr const char* kTitleOfBlocks = "all_reduce of blocks";
inline constexpr const char* kBlocksOfRanks = "blocks";
inline constexpr const char* kServedBlocks = "blocks:servers";

/// What all members know of the rows.
struct RowLayout {
  RowStreams streams;
  size_t row_bytes = 0;
  bool is_dense = false;  ///< a row that a rank does not send has the value zero, and not none
};

struct SparseCall {
  RowLayout layout;
  /// Of a rank: its rows. A server has none.
  std::shared_ptr<RowSource> rows = {};
  int ranks = 0;  ///< members that have rows: the first ones. If there are others, they aggregate
  DType dtype = DType::kFloat32;
  int divisor = 1;                         ///< the mean of a sum: the world size
  uint64_t agreed = 0;                     ///< what the ranks must agree on beside the rows: shapes
  size_t bytes = 0;                        ///< of this rank's tensor, for messages
  std::string title = {};                  ///< how the caller calls it, for messages
  const char* plan = "";                   ///< what the ledger calls the algorithm
  std::shared_ptr<RowCensus> census = {};  ///< hears what rows there were; null: nobody asks

  /// The member that owns the share of that number.
  int member_of(int owner, int world_size) const {
    return ranks == world_size ? owner : ranks + owner;
  }
};

}  // namespace q7x2
