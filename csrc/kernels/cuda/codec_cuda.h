// Codecs on a GPU: the functions of CodecKernels (kernels/cuda/codec_kernels.h). Each but `mark` is
// one kernel, and reads and writes the memory of the GPU once. Part of builds with CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/marking.h"
#include "kernels/codec/sum_int.h"
#include "kernels/codec/value_codec.h"
#include "kernels/cuda/fold.h"

namespace q7x2 {

// All of them start on `stream`, a cudaStream_t of the current device, and return. They throw
// Error(kInternal) with CUDA's status.

void encode_values_cuda(const ValueSpec& spec, const ValueBlock& block, std::byte* body,
                        void* stream);
void decode_values_cuda(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                        uint64_t first, uint64_t shared_key, bool add, void* stream);
void fold_values_cuda(const ValueSpec& spec, const Fold& fold, const ValueBlock& block,
                      const FoldTarget& to, void* stream);
void find_nonfinite_cuda(const float* values, size_t count, uint32_t* found, void* stream);
void group_maxima_cuda(const ValueSpec& spec, const SumIntBlock& block, float* maxima,
                       void* stream);
void encode_sum_int_cuda(const ValueSpec& spec, int levels, const SumIntBlock& block,
                         const float* maxima, void* codes, void* stream);
void decode_sum_int_cuda(const ValueSpec& spec, int levels, const void* sums, const float* maxima,
                         int divisor, float* out, size_t count, void* stream);
void mark_cuda(const CodecSpec& spec, const MarkSource& source, const Marks& to, MarkCounts* counts,
               std::byte* scratch, void* stream);
void take_marked_cuda(const Marks& marks, const float* values, float* error, float* taken,
                      void* stream);
void put_marked_cuda(const Marks& marks, const float* put, float* out, bool add, void* stream);

}  // namespace q7x2
