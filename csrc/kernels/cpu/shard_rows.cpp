#include "kernels/cpu/shard_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/independent.h"

namespace q7x2 {
namespace {

/// Number of fp32 values that stay in the L1 cache between two passes over them.
constexpr size_t kStretch = 2048;

/// Calls `body(first, count)` for each stretch of at most kStretch elements.
template <class Body>
void by_stretches(size_t count, Body body) {
  for (size_t first = 0; first < count; first += kStretch) {
    body(first, std::min(kStretch, count - first));
  }
}

std::byte* at(void* elements, size_t index, DType dtype) {
  return static_cast<std::byte*>(elements) + index * element_size(dtype);
}
const std::byte* at(const void* elements, size_t index, DType dtype) {
  return static_cast<const std::byte*>(elements) + index * element_size(dtype);
}

void widen_divided(float* out, const void* in, size_t count, DType dtype, float divisor) {
  if (divisor == 1) return widen(out, in, count, dtype);
  by_stretches(count, [&](size_t first, size_t here) {
    widen(out + first, at(in, first, dtype), here, dtype);
    for (size_t i = first; i < first + here; ++i) out[i] /= divisor;
  });
}

void narrow_multiplied(void* out, const float* in, size_t count, DType dtype, float factor) {
  if (factor == 1) return narrow(out, in, count, dtype);
  by_stretches(count, [&](size_t first, size_t here) {
    float products[kStretch];
    for (size_t i = 0; i < here; ++i) products[i] = in[first + i] * factor;
    narrow(at(out, first, dtype), products, here, dtype);
  });
}

void convert(void* out, DType to, const void* in, DType from, size_t count) {
  if (count == 0) return;
  if (to == from) {
    std::memcpy(out, in, count * element_size(to));
    return;
  }
  by_stretches(count, [&](size_t first, size_t here) {
    float values[kStretch];
    widen(values, at(in, first, from), here, from);
    narrow(at(out, first, to), values, here, to);
  });
}

}  // namespace

ShardRows::ShardRows(std::vector<ShardPiece> pieces) : pieces_(std::move(pieces)) {
  for (const ShardPiece& piece : pieces_) {
    count_ += piece.count;
    (piece.is_coded ? coded_count_ : whole_count_) += piece.room;
  }
}

void ShardRows::pack(const void* rows, size_t number, DType dtype, float divisor, float* coded,
                     void* whole) const {
  size_t from = 0;
  size_t kept = 0;
  for (size_t row = 0; row < number; ++row) {
    for (const ShardPiece& piece : pieces_) {
      if (piece.is_coded) {
        widen_divided(coded, at(rows, from, dtype), piece.count, dtype, divisor);
        std::fill(coded + piece.count, coded + piece.room, 0.0F);
        coded += piece.room;
      } else {
        convert(at(whole, kept, dtype), dtype, at(rows, from, dtype), dtype, piece.count);
        std::memset(at(whole, kept + piece.count, dtype), 0,
                    (piece.room - piece.count) * element_size(dtype));
        kept += piece.room;
      }
      from += piece.count;
    }
  }
}

void ShardRows::unpack(const float* coded, const void* whole, DType whole_dtype, size_t number,
                       float factor, void* rows, DType dtype) const {
  size_t to = 0;
  size_t kept = 0;
  for (size_t row = 0; row < number; ++row) {
    for (const ShardPiece& piece : pieces_) {
      if (piece.is_coded) {
        narrow_multiplied(at(rows, to, dtype), coded, piece.count, dtype, factor);
        coded += piece.room;
      } else {
        convert(at(rows, to, dtype), dtype, at(whole, kept, whole_dtype), whole_dtype, piece.count);
        kept += piece.room;
      }
      to += piece.count;
    }
  }
}

// Sums of a stretch are computed in fp32 lanes, so that the compiler can vectorise them.
SquaredNorms subtract(float* values, const float* reference, size_t count) {
  constexpr size_t kLanes = 16;
  SquaredNorms norms;
  by_stretches(count, [&](size_t first, size_t here) {
    float difference[kLanes] = {};
    float before[kLanes] = {};
    float* const mine = values + first;
    const float* const theirs = reference + first;
    const auto take = [&](size_t i, size_t lane) {
      before[lane] += mine[i] * mine[i];
      mine[i] -= theirs[i];
      difference[lane] += mine[i] * mine[i];
    };
    size_t i = 0;
    for (; i + kLanes <= here; i += kLanes) {
      Q7X2_INDEPENDENT
      for (size_t lane = 0; lane < kLanes; ++lane) take(i + lane, lane);
    }
    for (; i < here; ++i) take(i, i % kLanes);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      norms.difference += static_cast<double>(difference[lane]);
      norms.before += static_cast<double>(before[lane]);
    }
  });
  return norms;
}

}  // namespace q7x2
