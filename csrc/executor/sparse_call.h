// SparseCall: the rows and the meaning of one sparse all-reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/types.h"

namespace q7x2 {

class RowSource;

struct SparseCall {
  std::shared_ptr<RowSource> rows;
  DType dtype = DType::kFloat32;
  int divisor = 1;        ///< the mean of a sum: the world size
  uint64_t agreed = 0;    ///< what the ranks must agree on beside the rows: shapes
  size_t bytes = 0;       ///< of this rank's tensor, for messages
  std::string title;      ///< how the caller calls it, for messages
  const char* plan = "";  ///< what the ledger calls the algorithm
};

}  // namespace q7x2
