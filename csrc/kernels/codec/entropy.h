// The entropy stage: packs the body of a message without loss, if that pays.
//
// A body consists of a few arrays: scales and casts, which are floats, then codes and indices,
// which are bytes. An array of floats is split into planes of bytes. The sign is rotated behind the
// mantissa, so that the first plane contains the exponents (for fp16 also the upper mantissa bits):
// the exponents of neighbours are similar, and mantissas are noise (Lindstrom and Isenburg, "Fast
// and efficient compression of floating-point data", 2006). Each plane is packed by itself, or not
// changed:
//
//   length   u32, of the body before packing
//   planes   of each: its packed length, u32, and its bytes; if the length has not changed, the
//            bytes have not changed either; a shorter plane is a zstd frame
//
// Only zstd's Huffman stage is needed, at about 1 GB/s: matches are searched in a table of 64
// entries, which finds almost only runs.
//
// 512 bytes of a plane show whether packing it pays: the probability that two of them are equal
// bounds the entropy from below (Renyi's entropy of order two). A plane that cannot be packed to
// 0.96 of its length costs no more than this test. A body without any plane that can be packed is
// not changed, so a message depends only on its block. Normal numbers: bf16 11 bits, fp32 27, int8
// 7.4, int4 3.2; ternary 1.2, gaps at a ratio of 1 % 7.5 of 8. One bit, and mantissas, never pay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/codec/codec_spec.h"

namespace q7x2 {

/// Packs a body of `entries` numbers in place. Returns its new length, or nothing if packing does
/// not pay.
std::optional<size_t> pack_body(const ValueSpec& spec, size_t entries, std::span<std::byte> body);

/// The body before packing, at most `most` bytes; nothing if `packed` is not a body of `entries`
/// numbers. It is valid until this thread's next call.
std::optional<std::span<const std::byte>> unpack_body(const ValueSpec& spec, size_t entries,
                                                      std::span<const std::byte> packed,
                                                      size_t most);

}  // namespace q7x2
