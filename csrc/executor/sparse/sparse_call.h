// SparseCall: the arguments of one sparse all-reduce.
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

/// Names of calls of blocks in messages, and of their algorithms in the ledger.
inline constexpr const char* kTitleOfBlocks = "all_reduce of blocks";
inline constexpr const char* kBlocksOfRanks = "blocks";
inline constexpr const char* kServedBlocks = "blocks:servers";

/// The layout of the rows, which all members know.
struct RowLayout {
  RowStreams streams;
  size_t row_bytes = 0;
  bool is_dense = false;  ///< whether a row that a rank does not send counts as zeros
};

struct SparseCall {
  RowLayout layout;
  /// The rows of a rank. Null on a server.
  std::shared_ptr<RowSource> rows = {};
  int ranks = 0;  ///< number of members with rows; they come first. Other members aggregate
  DType dtype = DType::kFloat32;
  /// Sums are divided by it; for a mean it is the world size.
  int divisor = 1;
  /// A number that must be equal on all ranks, made from the tensor's shape.
  uint64_t agreed = 0;
  size_t bytes = 0;                        ///< bytes of this rank's tensor, for messages
  std::string title = {};                  ///< the caller's name for it, for messages
  const char* plan = "";                   ///< the ledger's name for the algorithm
  std::shared_ptr<RowCensus> census = {};  ///< counts the rows; null: not needed

  /// The member that owns the share number `owner`.
  int member_of(int owner, int world_size) const {
    return ranks == world_size ? owner : ranks + owner;
  }
};

}  // namespace q7x2
