// What the stages of a codec are given and give: values, selections, random numbers, options.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/codec/gathered_elements.h"

namespace q7x2 {

/// Elements [first, first + count) of a tensor as fp32, what an error buffer adds included; they
/// stay until the next call. `count` is kLargestRead at most.
using ReadElements = std::function<const float*(size_t first, size_t count)>;
inline constexpr size_t kLargestRead = 8192;

/// What the select stage sends of one tensor. Of its numbers an element can tell by itself.
struct Selection {
  /// Bits of the least magnitude (kBlocks: norm) that is sent; infinity's at most.
  uint32_t least = 0;
  /// Of those of exactly that magnitude, up to this element (kBlocks: up to its block).
  uint64_t last_tie = ~uint64_t{0};
  /// The elements that are sent, errors added, where the selection has come by all of them; they
  /// need not be looked for again. Null: they do.
  std::shared_ptr<const GatheredElements> gathered = nullptr;
};

/// Of the elements [first, first + count) those that are sent if they are of the least magnitude:
/// so many of the first.
inline size_t ties_among(const Selection& selection, uint64_t first, size_t count) {
  if (selection.last_tie < first) return 0;
  return static_cast<size_t>(std::min<uint64_t>(count - 1, selection.last_tie - first)) + 1;
}

/// Random numbers of one call. `shared` is equal on all ranks (rotations, random selections),
/// `rounding` differs, so that errors of ranks are independent.
struct CodecKeys {
  uint64_t shared = 0;
  uint64_t rounding = 0;
};

/// What a decoder does with its results.
enum class Store : uint8_t {
  kCached,
  kPastCaches,  ///< stores them around the caches where it can: the tensor is longer than those
  kAdd,         ///< adds them to what is there
};

struct DecodeOptions {
  Store store = Store::kCached;
  /// Gains a bit for each element that the message holds a number of; may be null.
  uint64_t* occupied = nullptr;
};

struct EncodeArguments {
  /// Null: there are those alone that the selection has gathered, and `sends_gathered_only` holds.
  const float* values = nullptr;
  size_t count = 0;
  uint64_t first = 0;  ///< the index of values[0] in the tensor; random numbers go by it
  /// Added to the values; may be null.
  const float* add = nullptr;
  /// Receives (sum - what the message decodes to) * error_scale; may be null, and may be `add`.
  float* error = nullptr;
  float error_scale = 1;
  Selection selection = {};  ///< of the whole tensor, where traits().selects
  CodecKeys keys = {};
  /// A bit for each value that may be other than zero; null: all may.
  const uint64_t* occupied = nullptr;
  /// Of a sum that is selected from again: how many are sent, one at least. None: the codec's
  /// share.
  std::optional<size_t> most = {};
};

}  // namespace q7x2
