// CodecKernels: the value stage on a device, the select stage, and integers that add, as functions
// that enqueue work on a stream.
//
// They give the same bytes and numbers as the CPU (kernels/codec/value_codec.h,
// kernels/codec/sparse_select.h, kernels/codec/sum_int.h), because they use the same element
// functions and group procedure. CUDA has its own (kernels/cuda/codec_cuda.h). The package of
// another accelerator may register some, compiled with the same version of this header. Without
// any, compressed calls on its tensors use the codecs of the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/codec/marking.h"
#include "kernels/codec/sum_int.h"
#include "kernels/codec/value_codec.h"
#include "kernels/cuda/fold.h"

namespace q7x2 {

/// All functions enqueue work on `stream`, the result of c10::Stream::native_handle, and return.
/// Pointers are to memory of the stream's device; bodies may begin at any byte. They throw Error.
struct CodecKernels {
  /// Size of this struct in bytes.
  uint64_t size = 0;
  void (*encode)(const ValueSpec& spec, const ValueBlock& block, std::byte* body,
                 void* stream) = nullptr;
  /// `add`: adds to the contents of `out`.
  void (*decode)(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                 uint64_t first, uint64_t shared_key, bool add, void* stream) = nullptr;
  /// The sum begins with `block.add`, if it is not null. `block.error` receives the error of the
  /// target's message; zeros if the target is numbers. All bodies contain `block.count` numbers
  /// from `block.first` on; `block.values` is not used. Throws Error(kInvalidArgument) for fewer
  /// than one contribution or more than kMostFolded.
  void (*fold)(const ValueSpec& spec, const Fold& fold, const ValueBlock& block,
               const FoldTarget& to, void* stream) = nullptr;
  /// Sets *found, in pinned host memory, to 1 if one of the numbers is not finite.
  void (*find_nonfinite)(const float* values, size_t count, uint32_t* found,
                         void* stream) = nullptr;
  // See kernels/codec/sum_int.h.
  void (*group_maxima)(const ValueSpec& spec, const SumIntBlock& block, float* maxima,
                       void* stream) = nullptr;
  void (*encode_sum_int)(const ValueSpec& spec, int levels, const SumIntBlock& block,
                         const float* maxima, void* codes, void* stream) = nullptr;
  void (*decode_sum_int)(const ValueSpec& spec, int levels, const void* sums, const float* maxima,
                         int divisor, float* out, size_t count, void* stream) = nullptr;
  // See kernels/codec/marking.h.
  /// Requires `is_marked_by_devices(spec)`. `scratch` is aligned to 16 bytes.
  void (*mark)(const CodecSpec& spec, const MarkSource& source, const Marks& to, MarkCounts* counts,
               std::byte* scratch, void* stream) = nullptr;
  /// Takes values + error, if `error` is not null: the error becomes zero if an element is taken,
  /// and the sum otherwise.
  void (*take)(const Marks& marks, const float* values, float* error, float* taken,
               void* stream) = nullptr;
  /// Elements without a bit become zero. With `add`, all elements keep their value, and `put` is
  /// added.
  void (*put)(const Marks& marks, const float* put, float* out, bool add, void* stream) = nullptr;

  bool is_complete() const {
    return size == sizeof(CodecKernels) && encode != nullptr && decode != nullptr &&
           fold != nullptr && find_nonfinite != nullptr && group_maxima != nullptr &&
           encode_sum_int != nullptr && decode_sum_int != nullptr && mark != nullptr &&
           take != nullptr && put != nullptr;
  }
};

/// For tensors on `device_type`, such as "npu". `kernels` must live for ever. Throws
/// Error(kInvalidArgument) if a function is missing, or if other kernels are already registered.
void register_codec_kernels(const std::string& device_type, const CodecKernels& kernels);

/// Null if none are registered.
const CodecKernels* codec_kernels(const std::string& device_type);

}  // namespace q7x2
