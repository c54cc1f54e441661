// A sum over all ranks through a codec, by q7x2's own collectives.
#pragma once

#include "backend/process_group.h"
#include "comm_hooks/run/hook.h"
#include "kernels/codec/codec.h"

namespace q7x2 {

/// Sums `message` (fp32 or narrower, one dimension) over all ranks in place. `how`: all options
/// except the codec. The collective throws Error(kInvalidArgument) when it starts in a group that
/// is not q7x2's.
inline HookCollective coded_sum(const Codec& codec, const at::Tensor& message, CodedOptions how) {
  how.codec = codec.name();
  const auto start = [tensor = message, how = std::move(how)](c10d::ProcessGroup& group) {
    const auto backend = group.getBackend(tensor.device().type());
    auto* const ours = dynamic_cast<ProcessGroupQ7x2*>(backend.get());
    if (ours == nullptr) {
      throw Error(ErrorCode::kInvalidArgument, "codecs need a process group of q7x2");
    }
    std::vector<at::Tensor> tensors{tensor};
    return ours->coded_all_reduce(tensors, how);
  };
  return {start, static_cast<size_t>(codec.sum_bits(1) / 8 * static_cast<double>(message.numel()))};
}

}  // namespace q7x2
