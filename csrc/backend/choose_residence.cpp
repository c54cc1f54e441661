// Uncompressed calls on device tensors may be direct: UCX sends from and receives into device
// memory. All ranks of a call must make the same choice, so it depends only on the group, the
// device and the kind of the call. Each rank decides by itself where its own elements are: on the
// device, unless its tensors are strided or overlap. Then it stages them, and UCX gets pinned
// memory at this end.
//
// The messages of compressed calls have the same bits wherever the elements are, so each rank
// decides by itself. The device needs kernels (kernels/cuda/codec_kernels.h), and a Plan that only
// sends messages of a codec. A rank may not know its Plan yet, because rank 0 announces it before
// the call. Then the elements stay on the device, and the residence degrades if the Plan does not
// run there.
#include "backend/choose_residence.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend/resident_tensors.h"
#include "backend/work_stream.h"
#include "device/accelerators.h"
#include "executor/collective/plan_call.h"
#include "executor/residence/device_coded.h"
#include "executor/residence/direct.h"
#include "executor/residence/selected.h"

namespace q7x2 {
namespace {

std::string type_of(const c10::Device& device) {
  return c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

bool are_apart_on_device(const std::vector<TensorCall>& calls, const void* own) {
  std::vector<at::Tensor> read;
  std::vector<at::Tensor> written;
  for (const TensorCall& each : calls) each.list(read, written);
  return can_stay(read, written, own);
}

/// Whether UCX gets memory of `device` in such calls. Equal on all ranks. Throws c10::Error if
/// device_path='direct' is not possible.
bool goes_directly(const std::vector<TensorCall>& calls, Group& group, const c10::Device& device) {
  const DevicePathOfGroup& path = group.links().device_path();
  TORCH_CHECK(path.obstacle.empty(), "q7x2: device_path='direct': ", path.obstacle);
  const std::string type = type_of(device);
  if (!path.is_direct || memory_of_device(type) != MemoryKind::kCuda) return false;
  return std::ranges::all_of(calls, [&](const TensorCall& each) {
    const CollectiveCall& call = each.call;
    return !is_reduction(call.collective) ||
           (codec_kernels(type) != nullptr && adds_directly(call.dtype, call.reduce));
  });
}

/// Whether this rank already knows the Plan of the call, and the Plan does not run on a device.
bool is_staged_by_plan(const CollectiveCall& call, PlanCache& plans, bool has_errors) {
  const std::shared_ptr<PlanCache::Entry> entry = plans.open(shape_of(call));
  if (!entry->is_settled()) return false;
  const Plan& plan = *entry->choice().plan;
  return !runs_on_device(plan, *call.coding.codec, call.dtype, has_errors) &&
         !selects_on_device(plan, *call.coding.codec, call.dtype);
}

}  // namespace

MakeResidence choose_residence(std::vector<TensorCall>& calls, Group& group, PlanCache& plans,
                               const DeviceLanes& lanes) {
  const c10::Device device = calls[0].any_tensor().device();
  if (device.is_cpu()) return nullptr;
  const CodecKernels* const kernels = codec_kernels(type_of(device));
  const auto resident = [&] {
    const WorkStreams streams = work_streams(device);
    return ResidentDevice{streams.to_host, streams.to_device, kernels, lanes.traffic()};
  };
  using Inputs = std::shared_ptr<InputLatch>;

  if (std::ranges::none_of(calls, [](const TensorCall& each) { return bool(each.call.coding); })) {
    const bool is_direct = goes_directly(calls, group, device);
    for (TensorCall& each : calls) each.call.is_direct = is_direct;
    const void* const own = calls.size() == 1 ? calls[0].part_of(group.rank()) : nullptr;
    if (!is_direct || !are_apart_on_device(calls, own)) return nullptr;
    return [to = resident()](Inputs inputs) -> std::unique_ptr<Residence> {
      return std::make_unique<Direct>(std::move(inputs), to);
    };
  }

  const CollectiveCall& call = calls[0].call;
  if (calls.size() != 1 || kernels == nullptr || !are_apart_on_device(calls, nullptr)) {
    return nullptr;
  }
  const bool codes = has_kernels_for(*call.coding.codec, call.dtype);
  if (!codes && !has_selection_for(*call.coding.codec, call.dtype)) return nullptr;
  if (is_staged_by_plan(call, plans, calls[0].has_errors())) return nullptr;
  return [to = resident(), codes](Inputs inputs) -> std::unique_ptr<Residence> {
    if (codes) return std::make_unique<DeviceCoded>(std::move(inputs), to);
    return std::make_unique<Selected>(std::move(inputs), to);
  };
}

}  // namespace q7x2
