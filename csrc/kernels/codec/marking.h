// Marking: the select stage on a device (kernels/codec/sparse_select.h), and what is done with its
// mask.
//
//   mark   which elements of a tensor are sent: a bit for each
//   take   those elements one behind another; the others stay, as the residual
//   put    the way back: numbers to the elements that have a bit
//
// A rank of a marked element is how many are in front of it. Tiles make that short to find: a mask
// comes with the rank of each tile's first element.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/codec_spec.h"
#include "kernels/cpu/elements.h"

namespace q7x2 {

/// Elements of a tile. A tensor that is marked has fewer than 2^32 elements.
inline constexpr size_t kMarkTile = 8192;

Q7X2_ELEMENT size_t mark_tiles(size_t count) {
  return (count + kMarkTile - 1) / kMarkTile;
}

/// Which of `count` elements are marked.
struct Marks {
  size_t count = 0;
  uint64_t* mask = nullptr;    ///< bit i % 64 of word i / 64 belongs to element i; zeros behind
  uint32_t* before = nullptr;  ///< by tile: how many are in front of it
};

struct MarkCounts {
  uint32_t marked = 0;
  uint32_t extreme = 0;  ///< of all elements those of `kExtreme` and more, and those not finite
};

/// From this magnitude on a codec may lose more of a number than a float can hold, and keeps no
/// error of it: fp16 and others.
inline constexpr float kExtremeOfFloat16 = 0x1p15F;
inline constexpr float kExtreme = 0x1p50F;

/// A tensor that is to be marked.
struct MarkSource {
  const float* values = nullptr;
  const float* add = nullptr;  ///< may be null
  size_t count = 0;
  uint64_t shared_key = 0;
};

/// Whether a device marks what this codec sends. Norms of blocks, and counts that balance parts,
/// are the host's.
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

/// What `mark` needs beside its results, in bytes: a table of magnitudes, and counts by tile.
inline constexpr size_t kMarkTableBytes = 16384;
inline size_t mark_scratch_bytes(size_t count) {
  return kMarkTableBytes + 2 * mark_tiles(count) * sizeof(uint32_t);
}

}  // namespace q7x2
