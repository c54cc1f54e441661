// The inputs and outputs of the stages of a codec: values, selections, random numbers, options.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/codec/gathered_elements.h"

namespace q7x2 {

/// Elements [first, first + count) of a tensor as fp32, with the error buffer added. They are valid
/// until the next call. `count` is at most kLargestRead.
using ReadElements = std::function<const float*(size_t first, size_t count)>;
inline constexpr size_t kLargestRead = 8192;

/// Which elements the select stage sends of one tensor. An element can be tested by itself.
struct Selection {
  /// Bits of the smallest magnitude (kBlocks: norm) that is sent; at most infinity's.
  uint32_t least = 0;
  /// Elements of exactly that magnitude are sent up to this element (kBlocks: up to its block).
  uint64_t last_tie = ~uint64_t{0};
  /// The elements that are sent, errors added, if the selection has read all of them; then no
  /// second search is needed. Null: a search is needed.
  std::shared_ptr<const GatheredElements> gathered = nullptr;
};

/// Number of leading elements of [first, first + count) that are sent if they have exactly the
/// smallest magnitude.
inline size_t ties_among(const Selection& selection, uint64_t first, size_t count) {
  if (selection.last_tie < first) return 0;
  return static_cast<size_t>(std::min<uint64_t>(count - 1, selection.last_tie - first)) + 1;
}

/// Random numbers of one call. `shared` is equal on all ranks (rotations, random selections),
/// `rounding` differs, so that the errors of ranks are independent.
struct CodecKeys {
  uint64_t shared = 0;
  uint64_t rounding = 0;
};

/// Where a decoder stores its results.
enum class Store : uint8_t {
  kCached,
  kPastCaches,  ///< bypasses the caches if it can: the tensor is longer than these
  kAdd,         ///< adds them to the output's values
};

struct DecodeOptions {
  Store store = Store::kCached;
  /// Gets a bit for each element whose number is in the message; may be null.
  uint64_t* occupied = nullptr;
};

struct EncodeArguments {
  /// Null: the values are exactly those that the selection has gathered, and `sends_gathered_only`
  /// holds.
  const float* values = nullptr;
  size_t count = 0;
  uint64_t first = 0;  ///< the index of values[0] in the tensor, which selects its random numbers
  /// Added to the values; may be null.
  const float* add = nullptr;
  /// Receives (sum - decoded message) * error_scale; may be null, and may be `add`.
  float* error = nullptr;
  float error_scale = 1;
  Selection selection = {};  ///< that of the whole tensor, if traits().selects
  CodecKeys keys = {};
  /// A bit for each value that may differ from zero; null: all may.
  const uint64_t* occupied = nullptr;
  /// For a sum that is selected from again: how many elements are sent, at least one. Empty: the
  /// codec's share.
  std::optional<size_t> most = {};
};

}  // namespace q7x2
