// CodecKernels: the value stage on a device, the select stage, and integers that add, as functions
// that enqueue work on a stream.
//
// They give the bytes and the numbers of the CPU (kernels/codec/value_codec.h,
// kernels/codec/sparse_select.h, kernels/codec/sum_int.h), from the same element functions and
// group procedure. CUDA has its own (kernels/cuda/codec_cuda.h). The package of another accelerator
// may register some, compiled with this header of the same version. Without any, compressed calls
// on its tensors use the codecs of the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/codec/marking.h"
#include "kernels/codec/sum_int.h"
#include "kernels/codec/value_codec.h"
#include "kernels/cuda/fold.h"

namespace q7x2 {

/// All functions enqueue on `stream`, which is what c10::Stream::native_handle returns, and return.
/// Pointers are to memory of the stream's device; bodies may begin at any byte. They throw Error.
struct CodecKernels {
  /// Of this struct, in bytes.
  uint64_t size = 0;
  void (*encode)(const ValueSpec& spec, const ValueBlock& block, std::byte* body,
                 void* stream) = nullptr;
  /// `add`: to what `out` holds.
  void (*decode)(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                 uint64_t first, uint64_t shared_key, bool add, void* stream) = nullptr;
  /// The sum begins with `block.add`, if it is not null. `block.error` receives what the target's
  /// message loses; if the target is numbers, zeros. All bodies are of `block.count` numbers from
  /// `block.first` on; `block.values` is not used. Throws Error(kInvalidArgument) for fewer than
  /// one contribution or more than kMostFolded.
  void (*fold)(const ValueSpec& spec, const Fold& fold, const ValueBlock& block,
               const FoldTarget& to, void* stream) = nullptr;
  /// Sets *found, in pinned host memory, to 1 if one of the numbers is not finite.
  void (*find_nonfinite)(const float* values, size_t count, uint32_t* found,
                         void* stream) = nullptr;
  // As in kernels/codec/sum_int.h.
  void (*group_maxima)(const ValueSpec& spec, const SumIntBlock& block, float* maxima,
                       void* stream) = nullptr;
  void (*encode_sum_int)(const ValueSpec& spec, int levels, const SumIntBlock& block,
                         const float* maxima, void* codes, void* stream) = nullptr;
  void (*decode_sum_int)(const ValueSpec& spec, int levels, const void* sums, const float* maxima,
                         int divisor, float* out, size_t count, void* stream) = nullptr;
  // As in kernels/codec/marking.h.
  /// Only if `is_marked_by_devices(spec)`. `scratch` is aligned to 16 bytes.
  void (*mark)(const CodecSpec& spec, const MarkSource& source, const Marks& to, MarkCounts* counts,
               std::byte* scratch, void* stream) = nullptr;
  /// Of values + error, if `error` is not null: it becomes zero where an element is taken, and the
  /// sum elsewhere.
  void (*take)(const Marks& marks, const float* values, float* error, float* taken,
               void* stream) = nullptr;
  /// Elements without a bit become zero; or, with `add`, all keep what they have, and `put` is
  /// added.
  void (*put)(const Marks& marks, const float* put, float* out, bool add, void* stream) = nullptr;

  bool is_complete() const {
    return size == sizeof(CodecKernels) && encode != nullptr && decode != nullptr &&
           fold != nullptr && find_nonfinite != nullptr && group_maxima != nullptr &&
           encode_sum_int != nullptr && decode_sum_int != nullptr && mark != nullptr &&
           take != nullptr && put != nullptr;
  }
};

/// For tensors on `device_type`, such as "npu". `kernels` must stay. Throws Error(kInvalidArgument)
/// if a function is missing, or if others are registered already.
void register_codec_kernels(const std::string& device_type, const CodecKernels& kernels);

/// Null: there are none.
const CodecKernels* codec_kernels(const std::string& device_type);

}  // namespace q7x2
