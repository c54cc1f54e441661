#include "kernels/cuda/codec_kernels.h"

#include <map>
#include <mutex>

#include "base/error.h"

#if Q7X2_HAVE_CUDA
#include "kernels/cuda/codec_cuda.h"
#endif

namespace q7x2 {
namespace {

struct Registry {
  std::mutex mutex;  // guards the next member
  std::map<std::string, const CodecKernels*> kernels;
};

Registry& registry() {
  static auto* const of_process = new Registry();
  return *of_process;
}

const CodecKernels* cuda_kernels() {
#if Q7X2_HAVE_CUDA
  static constexpr CodecKernels kernels{.size = sizeof(CodecKernels),
                                        .encode = &encode_values_cuda,
                                        .decode = &decode_values_cuda,
                                        .fold = &fold_values_cuda,
                                        .find_nonfinite = &find_nonfinite_cuda,
                                        .group_maxima = &group_maxima_cuda,
                                        .encode_sum_int = &encode_sum_int_cuda,
                                        .decode_sum_int = &decode_sum_int_cuda,
                                        .mark = &mark_cuda,
                                        .take = &take_marked_cuda,
                                        .put = &put_marked_cuda};
  return &kernels;
#else
  return nullptr;
#endif
}

}  // namespace

void register_codec_kernels(const std::string& device_type, const CodecKernels& kernels) {
  if (!kernels.is_complete()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the codec kernels of '" + device_type + "' are incomplete: expected " +
                    std::to_string(sizeof(CodecKernels)) + " bytes with all functions, got " +
                    std::to_string(kernels.size));
  }
  const std::lock_guard lock(registry().mutex);
  const auto [found, is_new] = registry().kernels.emplace(device_type, &kernels);
  if (device_type == "cuda" || (!is_new && found->second != &kernels)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the accelerator '" + device_type + "' has codec kernels already");
  }
}

const CodecKernels* codec_kernels(const std::string& device_type) {
  if (device_type == "cuda") return cuda_kernels();
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().kernels.find(device_type);
  return found == registry().kernels.end() ? nullptr : found->second;
}

}  // namespace q7x2
