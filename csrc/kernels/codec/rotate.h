// The randomised Hadamard rotation of a group: random signs, then the Walsh-Hadamard transform.
//
// After a rotation the numbers of a group are nearly normal, for any input: no outlier stretches
// the scale, and the error depends only on the length of the group (Suresh et al., "Distributed
// mean estimation with limited communication", 2017; Vargaftik et al., "DRIVE", 2021). The
// transform has n log2 n additions: butterflies (a, b) -> (a + b, a - b) at strides n/2 ... 1, in
// this order on every processor. A group whose size is no power of two is rotated in pieces whose
// sizes are, the largest first.
//
// Strides of at least a vector pair whole vectors, two strides in one pass over the group; shorter
// ones pair the lanes of a vector, with a shuffle. Compiled once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/codec/random.h"
#include "kernels/codec/value_elements.h"
#include "kernels/cpu/vector_width.h"

namespace q7x2 {
namespace {

using Vector = float __attribute__((vector_size(kWidth * sizeof(float))));

Q7X2_ELEMENT Vector load_vector(const float* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}
Q7X2_ELEMENT void store_vector(float* to, Vector vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

template <int kStride, int... kLane>
Q7X2_ELEMENT Vector pair_lanes(Vector x, std::integer_sequence<int, kLane...>) {
  const Vector signs = {((kLane & kStride) == 0 ? 1.0F : -1.0F)...};
  return x * signs + __builtin_shufflevector(x, x, (kLane ^ kStride)...);
}

/// The butterflies within a vector.
template <int kStride>
Q7X2_ELEMENT Vector transform_lanes(Vector x) {
  if constexpr (kStride == 0) {
    return x;
  } else {
    return transform_lanes<kStride / 2>(
        pair_lanes<kStride>(x, std::make_integer_sequence<int, static_cast<int>(kWidth)>()));
  }
}

void walsh_hadamard_short(float* values, size_t count) {
  for (size_t stride = count / 2; stride > 0; stride /= 2) {
    for (size_t i = 0; i < count; ++i) {
      if ((i & stride) != 0) continue;
      const float sum = values[i] + values[i + stride];
      values[i + stride] = values[i] - values[i + stride];
      values[i] = sum;
    }
  }
}

void walsh_hadamard(float* values, size_t count) {
  if (count < kWidth) return walsh_hadamard_short(values, count);
  size_t stride = count / 2;
  for (; stride >= 2 * kWidth; stride /= 4) {
    const size_t half = stride / 2;
    for (size_t begin = 0; begin < count; begin += 2 * stride) {
      for (size_t i = begin; i < begin + half; i += kWidth) {
        const Vector a = load_vector(values + i);
        const Vector b = load_vector(values + i + half);
        const Vector c = load_vector(values + i + stride);
        const Vector d = load_vector(values + i + stride + half);
        store_vector(values + i, (a + c) + (b + d));
        store_vector(values + i + half, (a + c) - (b + d));
        store_vector(values + i + stride, (a - c) + (b - d));
        store_vector(values + i + stride + half, (a - c) - (b - d));
      }
    }
  }
  constexpr int kFirst = static_cast<int>(kWidth / 2);
  if (stride == kWidth) {
    for (size_t i = 0; i < count; i += 2 * kWidth) {
      const Vector a = load_vector(values + i);
      const Vector b = load_vector(values + i + kWidth);
      store_vector(values + i, transform_lanes<kFirst>(a + b));
      store_vector(values + i + kWidth, transform_lanes<kFirst>(a - b));
    }
  } else {
    for (size_t i = 0; i < count; i += kWidth) {
      store_vector(values + i, transform_lanes<kFirst>(load_vector(values + i)));
    }
  }
}

/// Multiplies numbers [begin, begin + count) of a group by `scale` and by their random signs.
void scale_signs(float* group, size_t begin, size_t count, RandomStream signs, float scale) {
  const auto flipped = [=](float value, uint32_t sign) {
    return float_from_bits(float_to_bits(value * scale) ^ (sign & 0x80000000u));
  };
  if (count < 16) {
    for (size_t i = begin; i < begin + count; ++i) {
      group[i] = flipped(group[i], group_sign(signs, static_cast<uint32_t>(i)));
    }
    return;
  }
  const size_t end = begin + count;
  for (size_t row = begin; row < end;) {
    uint32_t words[16];
    for (size_t j = 0; j < 16; ++j) {
      words[j] = random_bits(signs, static_cast<uint32_t>(row / 512 * 16 + j));
    }
    do {
      const size_t shift = row / 16 % 32;
      for (size_t j = 0; j < 16; ++j) group[row + j] = flipped(group[row + j], words[j] << shift);
      row += 16;
    } while (row < end && row % 512 != 0);
  }
}

template <class Visit>
void for_each_piece(size_t count, Visit visit) {
  size_t piece = kLargestGroup;
  for (size_t begin = 0; begin < count; begin += piece) {
    while (piece > count - begin) piece /= 2;
    visit(begin, piece);
  }
}

/// In place. The result is a rotation times kRotatedScale.
void rotate(float* values, size_t count, RandomStream signs) {
  for_each_piece(count, [&](size_t begin, size_t piece) {
    scale_signs(values, begin, piece, signs, scale_into_rotation(piece));
    walsh_hadamard(values + begin, piece);
  });
}

/// The inverse of `rotate`, times `step`.
void rotate_back(float* values, size_t count, RandomStream signs, float step) {
  for_each_piece(count, [&](size_t begin, size_t piece) {
    walsh_hadamard(values + begin, piece);
    scale_signs(values, begin, piece, signs, scale_out_of_rotation(piece) * step);
  });
}

}  // namespace
}  // namespace q7x2
