// Where the elements of a compressed call on device tensors are: on the device, which encodes and
// decodes them, or selects what is sent; or in host memory, where the codecs of the CPU do both.
//
// Messages have the same bits either way, so each rank decides by itself. The device needs kernels
// (kernels/cuda/codec_kernels.h), and a Plan that only sends messages. If this rank does not know
// its Plan yet, because rank 0 announces it ahead of the call, the call decides when it does
// (executor/collective/collective_device.cpp).
#include <string>
#include <vector>

#include "backend/argument_checks.h"
#include "backend/process_group.h"
#include "backend/resident_tensors.h"
#include "backend/work_stream.h"
#include "executor/collective/plan_call.h"
#include "executor/residence/device_coder.h"
#include "executor/residence/sparse_staging.h"

namespace q7x2 {
namespace {

/// The call but for its addresses: `parts` equal regions.
CollectiveCall call_of(Collective collective, const at::Tensor& input, const at::Tensor& output,
                       size_t parts) {
  const auto regions = [&](const at::Tensor& tensor, bool is_divided) {
    const size_t count = is_divided ? parts : 1;
    return std::vector<Region>(count, Region{nullptr, tensor.nbytes() / count});
  };
  CollectiveCall call;
  call.collective = collective;
  call.input = regions(input, collective == Collective::kReduceScatter);
  call.output = regions(output, collective == Collective::kAllGather);
  call.dtype = reducible_dtype(input);
  return call;
}

}  // namespace

void ProcessGroupQ7x2::choose_device(Launch& launch, Collective collective, const Tensors& inputs,
                                     const Tensors& outputs, const CodedOptions& opts) {
  const c10::Device device = inputs[0].device();
  if (device.is_cpu() || inputs.size() != 1) return;
  const CodecKernels* const kernels =
      codec_kernels(c10::DeviceTypeName(device.type(), /*lower_case=*/true));
  const bool is_in_place = collective == Collective::kAllReduce;
  Tensors written = opts.errors;
  written.push_back(is_in_place ? inputs[0] : outputs[0]);
  if (kernels == nullptr || !can_stay(is_in_place ? Tensors() : inputs, written)) return;

  CollectiveCall call = call_of(collective, inputs[0], outputs[0], static_cast<size_t>(size_));
  call.algorithms = algorithms_of_thread();
  call.coding.edges = opts.edges;
  const std::shared_ptr<const Codec> codec = codec_of(call, opts);
  if (codec == nullptr) return;
  if (!has_kernels_for(*codec, call.dtype) && !has_selection_for(*codec, call.dtype)) return;
  call.coding.codec = codec;
  try {
    const std::shared_ptr<PlanCache::Entry> entry = plans_->open(shape_of(call));
    if (entry->is_settled() &&
        !runs_on_device(*entry->choice().plan, *codec, call.dtype, !opts.errors.empty()) &&
        !selects_on_device(*entry->choice().plan, *codec, call.dtype)) {
      return;
    }
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
  const WorkStreams streams = work_streams(device);
  launch.resident_device =
      ResidentDevice{streams.to_host, streams.to_device, kernels, lanes_.traffic()};
  launch.buffers->stay_on_device();
}

}  // namespace q7x2
