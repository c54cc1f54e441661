// The value stage on a GPU: the same bodies as kernels/value_codec.h makes, bit by bit, from the
// same element functions. A thread block codes a group, in shared memory, so that the GPU's memory
// is read and written once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/value_codec.h"

namespace q7x2 {

/// Starts on `stream`, a cudaStream_t of the current device, and returns. Pointers are to memory of
/// that device; bodies are aligned to 4 bytes. Throws Error(kInternal) with CUDA's status. Part of
/// builds with CUDA.
void encode_values_cuda(const ValueSpec& spec, const ValueBlock& block, std::byte* body,
                        void* stream);
void decode_values_cuda(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                        uint64_t first, uint64_t shared_key, bool add, void* stream);

}  // namespace q7x2
