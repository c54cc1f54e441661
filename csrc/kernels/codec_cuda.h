// The value stage on a GPU: the same bodies as kernels/value_codec.h makes, bit by bit, from the
// same element functions and group procedure (kernels/value_group.h). Each function is one kernel,
// which reads and writes the GPU's memory once. Part of builds with CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/value_codec.h"

namespace q7x2 {

// All start on `stream`, a cudaStream_t of the current device, and return. Pointers are to memory
// of that device; bodies may begin at any byte. They throw Error(kInternal) with CUDA's status.

void encode_values_cuda(const ValueSpec& spec, const ValueBlock& block, std::byte* body,
                        void* stream);
void decode_values_cuda(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                        uint64_t first, uint64_t shared_key, bool add, void* stream);

/// One rank's contribution: a message's body, or, where that is null, numbers as they are.
struct FoldSource {
  const std::byte* body = nullptr;
  const float* values = nullptr;
};
inline constexpr int kMostFolded = 64;
struct FoldSources {
  FoldSource of[kMostFolded];
  int num = 0;
};

/// Adds up the contributions, the first one first, and encodes the sum: the same as decoding and
/// adding one after another, and encoding the result with `block.add` and `block.error`. All bodies
/// are of `block.count` numbers from `block.first` on; `block.values` is not used. Throws
/// Error(kInvalidArgument) for fewer than one contribution or more than kMostFolded.
void fold_values_cuda(const ValueSpec& spec, const FoldSources& sources, const ValueBlock& block,
                      std::byte* body, void* stream);

}  // namespace q7x2
