// FSDP's rows of shards, and the same in two parts: what goes through a codec, in fp32, and the
// rest. python/q7x2/fsdp/layout.py has the picture.
#pragma once

#include <cstddef>
#include <vector>

#include "base/types.h"

namespace q7x2 {

/// One parameter's shard in a row.
struct ShardPiece {
  size_t count;   ///< elements
  size_t room;    ///< in its part; zeros fill it
  bool is_coded;  ///< in which part it is
};

class ShardRows {
 public:
  explicit ShardRows(std::vector<ShardPiece> pieces);

  /// Elements of a row, and of both parts of it.
  size_t count() const { return count_; }
  size_t coded_count() const { return coded_count_; }
  size_t whole_count() const { return whole_count_; }

  /// Splits rows of floats; the coded part is divided. Throws Error(kInvalidArgument) where there
  /// is a coded part and `dtype` is no float.
  void pack(const void* rows, size_t number, DType dtype, float divisor, float* coded,
            void* whole) const;
  /// The inverse: joins both parts; the coded one is multiplied. `whole_dtype` may differ from
  /// `dtype`, between floats.
  void unpack(const float* coded, const void* whole, DType whole_dtype, size_t number, float factor,
              void* rows, DType dtype) const;

 private:
  const std::vector<ShardPiece> pieces_;
  size_t count_ = 0;
  size_t coded_count_ = 0;
  size_t whole_count_ = 0;
};

/// Squares of the norms of what `subtract` has made, and of what was there before.
struct SquaredNorms {
  double difference = 0;
  double before = 0;
};

/// values -= reference.
SquaredNorms subtract(float* values, const float* reference, size_t count);

}  // namespace q7x2
