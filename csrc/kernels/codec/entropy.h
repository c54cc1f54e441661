// The entropy stage: the body of a message, packed without loss where that pays.
//
// A body is a few arrays: scales and casts, which are floats, then codes and indices, which are
// bytes. An array of floats is taken apart into planes of bytes, the sign rotated behind the
// mantissa so that the first plane is the exponents (of fp16 with the upper mantissa bits):
// neighbours' exponents are much alike, and mantissas are noise (Lindstrom and Isenburg, "Fast and
// efficient compression of floating-point data", 2006). Each plane is packed by itself, or left as
// it is:
//
//   length   u32, of the body before
//   planes   of each: its length here, u32, and its bytes; a plane that is as long as before is as
//            it was, a shorter one is a zstd frame
//
// All that zstd is wanted for is its Huffman stage, at about 1 GB/s: matches are looked for in a
// table of 64 entries, which finds runs and next to nothing else.
//
// Whether a plane pays is told by 512 of its bytes: the probability that two of them are equal
// bounds the entropy from below (Renyi's entropy of order two). A plane that cannot be packed to
// 0.96 of its length costs no more than that, and a body without any that can is not touched, so a
// message depends on nothing but its block. Normal numbers: bf16 11 bits, fp32 27, int8 7.4,
// int4 3.2; ternary 1.2, gaps of one in a hundred 7.5 of 8. One bit, and mantissas, never pay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/codec/codec_spec.h"

namespace q7x2 {

/// Packs a body of `entries` numbers in place and returns its new length, or nothing where that
/// does not pay.
std::optional<size_t> pack_body(const ValueSpec& spec, size_t entries, std::span<std::byte> body);

/// The body that was packed, of at most `most` bytes, or nothing where `packed` is not one of
/// `entries` numbers. It stays until this thread's next call.
std::optional<std::span<const std::byte>> unpack_body(const ValueSpec& spec, size_t entries,
                                                      std::span<const std::byte> packed,
                                                      size_t most);

}  // namespace q7x2
