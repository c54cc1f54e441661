// Numbers from which it is hard to select, the selection by sorting, and a sender of messages.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec/codec.h"
#include "kernels/codec/sparse.h"
#include "kernels/codec/sparse_elements.h"
#include "kernels/codec/sparse_select.h"
#include "kernels/codec/value_elements.h"

namespace q7x2::test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline constexpr size_t kLengths[] = {0,  1,   2,   15,  16,  17,   63,   64,
                                      65, 127, 128, 255, 256, 1000, 4096, 4100};

inline std::vector<float> normal(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

/// Few different magnitudes, zeros, and numbers that are not finite.
inline std::vector<float> awkward(size_t count, uint64_t seed) {
  constexpr float kValues[] = {0,      -0.0F, 1,      -1,   0.5,   -0.5,
                               1e-42F, 3e38F, -3e38F, kInf, -kInf, kNaN};
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = kValues[random() % std::size(kValues)];
  return values;
}

inline ReadElements reader(const std::vector<float>& values) {
  return [&values](size_t first, size_t count) {
    EXPECT_LE(count, kLargestRead);
    EXPECT_LE(first + count, values.size());
    return values.data() + first;
  };
}

inline std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> all(values.size());
  for (size_t i = 0; i < values.size(); ++i) all[i] = float_to_bits(values[i]);
  return all;
}

/// Indices of the k largest magnitudes that are not zero; of equal ones the first.
inline std::set<size_t> sorted_out(const std::vector<float>& values, size_t k) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return magnitude_bits(values[a]) > magnitude_bits(values[b]);
  });
  std::set<size_t> selected;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const float value = values[order[rank]];
    if (!std::isfinite(value) || (rank < k && value != 0)) selected.insert(order[rank]);
  }
  return selected;
}

/// Encodes and decodes values as one tensor, in blocks.
class Sender {
 public:
  explicit Sender(const std::string& name, size_t block = 1 << 16)
      : codec_(Codec::make(name)), block_(block) {}

  const Codec& codec() const { return *codec_; }

  /// Returns the numbers that receivers get; `error` may be empty. Adds up `bytes`.
  std::vector<float> send(const std::vector<float>& values, std::vector<float>& error,
                          CodecKeys keys) {
    const auto read = [&](size_t first, size_t count) {
      sums_.assign(values.begin() + static_cast<ptrdiff_t>(first),
                   values.begin() + static_cast<ptrdiff_t>(first + count));
      for (size_t i = 0; i < count && !error.empty(); ++i) sums_[i] += error[first + i];
      return sums_.data();
    };
    const Selection selection = codec_->select(read, values.size(), keys);
    std::vector<float> out(values.size());
    for (size_t first = 0; first < values.size(); first += block_) {
      const size_t count = std::min(block_, values.size() - first);
      float* const own = error.empty() ? nullptr : error.data() + first;
      std::vector<std::byte> message(codec_->max_bytes(count));
      const size_t length = codec_->encode(
          {values.data() + first, count, first, own, own, 1, selection, keys, nullptr},
          message.data());
      EXPECT_LE(length, message.size());
      message.resize(length);
      bytes += length;
      codec_->decode(message, out.data() + first, count, first, keys);
    }
    return out;
  }

  size_t bytes = 0;

 private:
  std::shared_ptr<const Codec> codec_;
  size_t block_;
  std::vector<float> sums_;
};

}  // namespace q7x2::test
