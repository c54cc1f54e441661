// Converts rows of shards of FSDP to two parts: the elements that go through a codec, in fp32, and
// the rest. python/q7x2/fsdp/layout.py has a picture.
#pragma once

#include <cstddef>
#include <vector>

#include "base/types.h"

namespace q7x2 {

/// One parameter's shard in a row.
struct ShardPiece {
  size_t count;   ///< elements
  size_t room;    ///< elements of its slot in its part; the rest is filled with zeros
  bool is_coded;  ///< which part it is in
};

class ShardRows {
 public:
  explicit ShardRows(std::vector<ShardPiece> pieces);

  /// Elements of a row, and of its coded part and its whole part.
  size_t count() const { return count_; }
  size_t coded_count() const { return coded_count_; }
  size_t whole_count() const { return whole_count_; }

  /// Splits rows; the coded part is divided by `divisor`. Throws Error(kInvalidArgument) if there
  /// is a coded part and `dtype` is not a float.
  void pack(const void* rows, size_t number, DType dtype, float divisor, float* coded,
            void* whole) const;
  /// The inverse: joins both parts; the coded one is multiplied by `factor`. `whole_dtype` may
  /// differ from `dtype` if both are floats.
  void unpack(const float* coded, const void* whole, DType whole_dtype, size_t number, float factor,
              void* rows, DType dtype) const;

 private:
  const std::vector<ShardPiece> pieces_;
  size_t count_ = 0;
  size_t coded_count_ = 0;
  size_t whole_count_ = 0;
};

/// Squared norms of the difference that `subtract` computes, and of the values before.
struct SquaredNorms {
  double difference = 0;
  double before = 0;
};

/// values -= reference.
SquaredNorms subtract(float* values, const float* reference, size_t count);

}  // namespace q7x2
