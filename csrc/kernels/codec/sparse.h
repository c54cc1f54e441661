// The select stage: sends some of a block's elements, and which ones these are.
//
// The body of a message is
//
//   values    of the elements that are sent, in order, in the format of the value stage
//   indices   which elements these are: nothing, gaps or a bitmap (kernels/codec/sparse_indices.h)
//
// and the header names one of four layouts, the shortest that is possible:
//
//   dense     all elements; no indices. Used as soon as it is no longer than the others: then it
//             costs nothing to send the elements that were not selected as well
//   implied   receivers know the elements themselves (randomk); no indices
//   deltas    gaps
//   bitmap    a bit for each position
//
// Positions are elements, or blocks of 256 elements of the tensor if blocks are selected. If a
// message contains only a part of a block, the norm of this part counts. A block of N elements of b
// bits, n of them sent, takes about n (b / 8 + 1.09) bytes at a ratio of 1 %, n b / 8 + N / 8 if
// many are sent, and at most N b / 8. It wins if few large elements dominate the sum, and with an
// error buffer, which keeps the rest for later steps. A dense message is shorter if n > N b / (b +
// 8) (Renggli et al., "SparCML", 2019); Aji and Heafield, "Sparse communication for distributed
// gradient descent", 2017; Stich et al., "Sparsified SGD with memory", 2018.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/codec/codec_arguments.h"
#include "kernels/codec/codec_spec.h"

namespace q7x2 {

enum class Layout : uint8_t { kDense, kImplied, kDeltas, kBitmap };

/// The contents of a body, as its header says.
struct SparseShape {
  Layout layout = Layout::kDense;
  uint32_t entries = 0;
};

struct SparseBody {
  SparseShape shape;
  size_t bytes = 0;
};

/// Writes the body of a block, at most value_bytes(spec.value, arguments.count) bytes.
SparseBody encode_sparse(const CodecSpec& spec, const EncodeArguments& arguments, std::byte* body);

/// Whether a message with `entries` of `count` elements is shorter than a dense one, for any
/// positions.
bool is_surely_sparse(const CodecSpec& spec, size_t entries, size_t count);

/// Returns false if the body is not one of `count` elements of this codec. `out` may then contain
/// anything.
bool decode_sparse(const CodecSpec& spec, SparseShape shape, std::span<const std::byte> body,
                   float* out, size_t count, uint64_t first, const CodecKeys& keys,
                   const DecodeOptions& options);

/// The expected share of the positions in a sum of this many contributions.
double sparse_share(const CodecSpec& spec, int contributions);

/// Expected bits per element of the tensor, if an element that is sent takes `value_bits`.
double sparse_bits(const CodecSpec& spec, double value_bits);

/// The same for a message that is the sum of several, if their indices are independent.
double sparse_sum_bits(const CodecSpec& spec, double value_bits, int contributions);

/// The spec with which an owner sends the sum of such messages: `spec` itself if receivers know the
/// indices.
CodecSpec spec_of_sums(const CodecSpec& spec);

}  // namespace q7x2
