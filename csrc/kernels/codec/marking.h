// Marking: the select stage on a device (kernels/codec/sparse_select.h), and the uses of its mask.
//
//   mark   determines which elements of a tensor are sent: a bit for each
//   take   collects these elements in a dense array; the others stay, as the residual
//   put    the inverse: writes numbers to the elements that have a bit
//
// The rank of a marked element is the number of marked elements before it. Tiles make that fast to
// find: a mask comes with the rank of each tile's first element.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/codec_spec.h"
#include "kernels/cpu/elements.h"

namespace q7x2 {

/// Elements per tile. A tensor that is marked must have fewer than 2^32 elements.
inline constexpr size_t kMarkTile = 8192;

Q7X2_ELEMENT size_t mark_tiles(size_t count) {
  return (count + kMarkTile - 1) / kMarkTile;
}

/// Which of `count` elements are marked.
struct Marks {
  size_t count = 0;
  /// bit i % 64 of word i / 64 belongs to element i; zeros after the last
  uint64_t* mask = nullptr;
  uint32_t* before = nullptr;  ///< by tile: number of marked elements before it
};

struct MarkCounts {
  uint32_t marked = 0;
  uint32_t extreme = 0;  ///< number of all elements of at least `kExtreme`, and of those not finite
};

/// For magnitudes from this one on, the error of a codec may be more than a float can hold, so no
/// error is kept: fp16 and others.
inline constexpr float kExtremeOfFloat16 = 0x1p15F;
inline constexpr float kExtreme = 0x1p50F;

/// A tensor to be marked.
struct MarkSource {
  const float* values = nullptr;
  const float* add = nullptr;  ///< may be null
  size_t count = 0;
  uint64_t shared_key = 0;
};

/// Whether a device marks the elements that this codec sends. Norms of blocks, and counts that
/// balance parts, are computed by the host.
inline bool is_marked_by_devices(const CodecSpec& spec) {
  switch (spec.select) {
    case SelectKind::kTopK:
    case SelectKind::kSampled:
    case SelectKind::kThreshold:
    case SelectKind::kRandomK:
    case SelectKind::kNofM:
      return !spec.balanced;
    default:
      return false;
  }
}

/// Bytes that `mark` needs besides its results: a table of magnitudes, and counts by tile.
inline constexpr size_t kMarkTableBytes = 16384;
inline size_t mark_scratch_bytes(size_t count) {
  return kMarkTableBytes + 2 * mark_tiles(count) * sizeof(uint32_t);
}

}  // namespace q7x2
