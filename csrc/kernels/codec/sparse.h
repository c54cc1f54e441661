// The select stage: of a block's elements some are sent, with what tells which.
//
// The body of a message is
//
//   values    of the elements that are sent, in their order, as the value stage writes them
//   indices   which elements those are: nothing, gaps or a bitmap (kernels/codec/sparse_indices.h)
//
// and the header names one of four layouts, the shortest of those that fit:
//
//   dense     all elements; no indices. Taken as soon as it is no longer than the others: from then
//             on it costs nothing to send the elements that were not selected as well
//   implied   those that receivers know themselves (randomk); no indices
//   deltas    gaps
//   bitmap    a bit for each position
//
// Positions are elements, or blocks of 256 of the tensor where those are selected; a block of which
// a message holds a part only is judged by this part. Bytes of a block of N elements of b bits, n
// of them sent: about n (b / 8 + 1.09) at one in a hundred, n b / 8 + N / 8 when many are; N b / 8
// at most. It wins where few large elements carry the sum, and with an error buffer, which keeps
// the rest for later steps. A dense message takes over where n > N b / (b + 8) (Renggli et al.,
// "SparCML", 2019); Aji and Heafield, "Sparse communication for distributed gradient descent",
// 2017; Stich et al., "Sparsified SGD with memory", 2018.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/codec/codec_arguments.h"
#include "kernels/codec/codec_spec.h"

namespace q7x2 {

enum class Layout : uint8_t { kDense, kImplied, kDeltas, kBitmap };

/// What a body holds; stated in its header.
struct SparseShape {
  Layout layout = Layout::kDense;
  uint32_t entries = 0;
};

struct SparseBody {
  SparseShape shape;
  size_t bytes = 0;
};

/// Writes the body of a block; it takes at most value_bytes(spec.value, arguments.count).
SparseBody encode_sparse(const CodecSpec& spec, const EncodeArguments& arguments, std::byte* body);

/// Whether no dense body is as short as one of so many of `count` elements, however they lie.
bool is_surely_sparse(const CodecSpec& spec, size_t entries, size_t count);

/// False where the body is not one of `count` elements of this codec. `out` may then hold anything.
bool decode_sparse(const CodecSpec& spec, SparseShape shape, std::span<const std::byte> body,
                   float* out, size_t count, uint64_t first, const CodecKeys& keys,
                   const DecodeOptions& options);

/// The expected share of the positions that a sum of so many contributions holds.
double sparse_share(const CodecSpec& spec, int contributions);

/// Expected bits of an element of the tensor, where one that is sent takes `value_bits`.
double sparse_bits(const CodecSpec& spec, double value_bits);

/// The same of a message that is the sum of several, if indices are independent of each other.
double sparse_sum_bits(const CodecSpec& spec, double value_bits, int contributions);

/// What an owner sends the sum of such messages with: `spec` itself where receivers know the
/// indices.
CodecSpec spec_of_sums(const CodecSpec& spec);

}  // namespace q7x2
