// Reductions with codecs that add integers (kernels/codec/sum_int.h). The ranks agree on scales, by
// the maximum of each group of elements, and then add integers with any uncompressed Plan. The
// all-reduce of the maxima is a prerequisite of the reduction of the integers, which are computed
// from its result (executor/collective/derived_input.h).
//
// An all-reduce has one region. A reduce-scatter has one region per rank. Each region begins with
// its own group, so its owner knows all its scales.
//
// With "hadamard+" the host rotates the numbers and their errors first. Afterwards it rotates the
// sums and the new errors back.
//
// A device with kernels computes the integers and decodes their sums. Then only maxima and integers
// are copied between device and host, in the order of streams. There is no device kernel for the
// rotation, so with a rotation the host computes the integers.
#include <algorithm>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend/argument_checks.h"
#include "backend/collectives.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/random.h"
#include "kernels/codec/sum_int.h"
#include "kernels/codec/sum_int_rotation.h"
#include "kernels/codec/value_elements.h"
#include "kernels/cuda/codec_kernels.h"

namespace q7x2::collectives {
namespace {

/// The state of one tensor's reduction.
struct Addition {
  at::Tensor floats;  // fp32, on the device that computes the integers; regions x elements
  // Integers; regions x elements.
  at::Tensor codes;
  at::Tensor errors;
  at::Tensor maxima;                // fp32, regions x groups
  at::Tensor sums;                  // sums of the codes of this rank's region
  std::vector<SumIntBlock> blocks;  // by region
  at::Tensor rotated_errors;        // errors of the rotated numbers, used instead of `errors`
  std::vector<uint64_t> rotations;  // by region: the keys of the rotation, equal on all ranks
};

at::ScalarType integers_of(int bits) {
  return bits == 8 ? at::kChar : bits == 16 ? at::kShort : at::kInt;
}

/// Computes integers on the host, or on the current stream of the tensors' device.
class IntegerCoder {
 public:
  IntegerCoder(const ValueSpec& spec, int levels, const std::vector<at::Tensor>& tensors)
      : spec_(spec), levels_(levels) {
    const c10::Device device = tensors[0].device();
    const bool is_one = std::ranges::all_of(
        tensors, [&](const at::Tensor& tensor) { return tensor.device() == device; });
    if (device.is_cpu() || !is_one || spec.hadamard) return;
    kernels_ = codec_kernels(c10::DeviceTypeName(device.type(), /*lower_case=*/true));
    if (kernels_ != nullptr) device_ = device;
  }

  bool is_on_device() const { return kernels_ != nullptr; }
  const c10::Device& device() const { return device_; }

  void find_maxima(const SumIntBlock& block, float* maxima) const {
    if (!is_on_device()) return group_maxima(spec_, block, maxima);
    enqueue([&] { kernels_->group_maxima(spec_, block, maxima, stream()); });
  }
  void encode(const SumIntBlock& block, const float* maxima, void* codes) const {
    if (!is_on_device()) return encode_sum_int(spec_, levels_, block, maxima, codes);
    enqueue([&] { kernels_->encode_sum_int(spec_, levels_, block, maxima, codes, stream()); });
  }
  void decode(const void* sums, const float* maxima, int divisor, float* out, size_t count) const {
    if (!is_on_device()) {
      return decode_sum_int(spec_, levels_, sums, maxima, divisor, out, count);
    }
    enqueue([&] {
      kernels_->decode_sum_int(spec_, levels_, sums, maxima, divisor, out, count, stream());
    });
  }

 private:
  template <typename Call>
  static void enqueue(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      std::rethrow_exception(to_exception(error));
    }
  }
  void* stream() const {
    return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).native_handle();
  }

  const ValueSpec spec_;
  const int levels_;
  c10::Device device_{at::kCPU};
  const CodecKernels* kernels_ = nullptr;  // null: on the host
};

/// Rotates the numbers, with their errors added.
void rotate(const ValueSpec& spec, uint64_t shared_key, Addition& addition) {
  const int64_t regions = addition.maxima.size(0);
  const int64_t elements = addition.floats.numel() / regions;
  addition.floats = addition.floats.flatten().clone();
  if (addition.errors.defined()) {
    addition.floats.add_(addition.errors.flatten());
    addition.rotated_errors = at::zeros_like(addition.floats);
  }
  for (int64_t region = 0; region < regions; ++region) {
    addition.rotations.push_back(mix_keys(shared_key, static_cast<uint64_t>(region)));
    rotate_groups(spec, addition.floats.mutable_data_ptr<float>() + region * elements,
                  static_cast<size_t>(elements), addition.rotations.back());
  }
}

/// Rotates the new errors back into `errors`. Groups that are not finite keep their old errors.
void rotate_errors_back(const ValueSpec& spec, Addition& addition) {
  if (!addition.errors.defined()) return;
  const int64_t regions = addition.maxima.size(0);
  const int64_t elements = addition.floats.numel() / regions;
  const at::Tensor lost = addition.rotated_errors.view({regions, elements});
  const at::Tensor kept = addition.errors.view({regions, elements});
  for (int64_t region = 0; region < regions; ++region) {
    rotate_groups_back(spec, lost[region].mutable_data_ptr<float>(), static_cast<size_t>(elements),
                       addition.rotations[static_cast<size_t>(region)]);
    const at::Tensor is_finite = addition.maxima[region]
                                     .isfinite()
                                     .repeat_interleave(static_cast<int64_t>(spec.group))
                                     .narrow(0, 0, elements);
    kept[region].copy_(at::where(is_finite, lost[region], kept[region]));
  }
}

/// Prepares the numbers of each tensor for encoding, and computes the maxima of this rank.
std::vector<Addition> begin_additions(const GroupCalls& group, const IntegerCoder& coder,
                                      const ValueSpec& spec, const Tensors& inputs,
                                      const CodedOptions& opts, bool scatters, uint64_t step) {
  const int64_t regions = scatters ? group.size() : 1;
  const at::TensorOptions options = at::TensorOptions().device(coder.device());
  std::vector<Addition> additions;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t elements = inputs[i].numel() / regions;
    const auto count = static_cast<size_t>(elements);
    Addition each;
    each.floats = inputs[i].detach().resolve_neg().to(coder.device(), at::kFloat).contiguous();
    each.maxima = at::empty({regions, static_cast<int64_t>(num_groups(spec, count))},
                            options.dtype(at::kFloat));
    each.codes = at::empty({regions, elements}, options.dtype(integers_of(spec.bits)));
    each.sums = scatters ? at::empty({elements}, each.codes.options()) : each.codes;
    if (!opts.errors.empty()) each.errors = opts.errors[i].to(coder.device());
    const uint64_t shared_key = mix_keys(mix_keys(opts.seed, step), i);
    if (spec.hadamard) rotate(spec, shared_key, each);
    const uint64_t key = mix_keys(shared_key, static_cast<uint64_t>(group.rank()));
    const at::Tensor& kept = spec.hadamard ? each.rotated_errors : each.errors;
    for (int64_t region = 0; region < regions; ++region) {
      float* const errors =
          kept.defined() ? kept.mutable_data_ptr<float>() + region * elements : nullptr;
      each.blocks.push_back({each.floats.const_data_ptr<float>() + region * elements, errors, count,
                             mix_keys(key, static_cast<uint64_t>(region))});
      coder.find_maxima(each.blocks.back(), each.maxima[region].mutable_data_ptr<float>());
    }
    additions.push_back(std::move(each));
  }
  return additions;
}

/// Computes the integers and the new errors. Requires the maxima of all ranks.
void encode(const IntegerCoder& coder, const ValueSpec& spec, Addition& addition) {
  const c10::AutoGradMode no_grad(false);
  for (size_t region = 0; region < addition.blocks.size(); ++region) {
    const auto at = static_cast<int64_t>(region);
    coder.encode(addition.blocks[region], addition.maxima[at].const_data_ptr<float>(),
                 addition.codes[at].mutable_data_ptr());
  }
  if (spec.hadamard) rotate_errors_back(spec, addition);
}

/// The all-reduce that turns the maxima of this rank into the maxima of all ranks.
CollectiveCall largest_of(const at::Tensor& maxima) {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.dtype = DType::kFloat32;
  call.reduce = ReduceKind::kMax;
  call.input =
      call.output = {{static_cast<std::byte*>(maxima.mutable_data_ptr()), maxima.nbytes()}};
  call.algorithms = algorithms_of_thread();
  return call;
}

/// Returns the codec's value format. Throws c10::Error if the codec does not support the options.
ValueSpec check_integers(const Codec& integers, const CodedOptions& opts) {
  TORCH_CHECK(!opts.refuses_nonfinite, "q7x2: codec '", integers.name(),
              "' cannot refuse infinities and NaNs: expected nonfinite=\"propagate\"");
  TORCH_CHECK(opts.edges == EdgeWish::kAuto || opts.edges == EdgeWish::kAll, "q7x2: codec '",
              integers.name(),
              "' adds integers on all edges: expected edges=\"auto\" or \"all\", got \"",
              to_string(opts.edges), '"');
  return integers.spec().value;
}

int levels_of(const ValueSpec& spec, int ranks) {
  try {
    return sum_int_levels(spec, ranks);
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
}

void describe_sums(CallBuilder& call, const std::vector<Addition>& additions, const Tensors& inputs,
                   const CodedOptions& opts, bool scatters) {
  const Reduction sum(c10d::ReduceOp::SUM, call.size);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Addition& each = additions[i];
    if (scatters) {
      call.add_reduce_scatter(each.sums, {each.codes}, sum);
    } else {
      call.add_all_reduce(each.sums, sum);
    }
    // The integers do not show their original type, nor whether the sum is divided. So ranks must
    // agree on these.
    call.calls.back().call.agreed =
        static_cast<uint32_t>(inputs[i].scalar_type()) << 8 |
        static_cast<uint32_t>(static_cast<c10d::ReduceOp::RedOpType>(opts.op));
  }
}

/// Reduces the maxima in a separate collective. The caller waits for it; with `async_op` its stream
/// does.
void agree_on_maxima(GroupCalls& group, const std::vector<Addition>& additions,
                     const CodedOptions& opts, bool async_op) {
  Tensors maxima;
  for (const Addition& each : additions) maxima.push_back(each.maxima);
  c10d::AllreduceCoalescedOptions largest;
  largest.reduceOp = c10d::ReduceOp::MAX;
  largest.timeout = opts.timeout;
  largest.asyncOp = async_op;
  all_reduce_coalesced(group, maxima, largest)->wait();
}

/// Decodes the sums of region `own`.
void read_sums(const IntegerCoder& coder, const ValueSpec& spec, const Addition& addition,
               int divisor, int64_t own, const at::Tensor& result) {
  const size_t count = addition.blocks[0].count;
  const at::Tensor floats = at::empty({result.numel()}, addition.floats.options());
  coder.decode(addition.sums.const_data_ptr(), addition.maxima[own].const_data_ptr<float>(),
               divisor, floats.mutable_data_ptr<float>(), count);
  if (spec.hadamard) {
    rotate_groups_back(spec, floats.mutable_data_ptr<float>(), count,
                       addition.rotations[static_cast<size_t>(own)]);
  }
  result.copy_(floats.view(result.sizes()));
}

/// Whether servers attempt one of these calls. Equal on all ranks.
bool are_served(const GroupCalls& group, std::vector<TensorCall>& calls) {
  return group.servers() && std::ranges::any_of(calls, [&](TensorCall& each) {
           each.call.algorithms = algorithms_of_thread();
           return group.servers()->serves(each.call);
         });
}

}  // namespace

// Each tensor has two dependent collectives, and the host does not wait between them: a job
// computes the integers as the input of the second one. On a device, streams order all of it. The
// host waits only if servers attempt the second collective, because the attempt and its copy of the
// input need the integers.
WorkPointer add_integers(GroupCalls& group, CallBuilder call, const Tensors& outputs,
                         const Tensors& inputs, const CodedOptions& opts, uint64_t step) {
  const c10::AutoGradMode no_grad(false);
  const ValueSpec spec = check_integers(*group.codecs().get(opts.codec), opts);
  Tensors tensors = inputs;
  tensors.insert(tensors.end(), opts.errors.begin(), opts.errors.end());
  const IntegerCoder coder(spec, levels_of(spec, group.size()), tensors);
  const c10::OptionalDeviceGuard guard(coder.is_on_device() ? std::optional(coder.device())
                                                            : std::nullopt);
  const bool scatters = call.type == c10d::OpType::REDUCE_SCATTER;
  const auto additions = std::make_shared<std::vector<Addition>>(
      begin_additions(group, coder, spec, inputs, opts, scatters, step));
  describe_sums(call, *additions, inputs, opts, scatters);
  if (coder.is_on_device() || are_served(group, call.calls)) {
    agree_on_maxima(group, *additions, opts, /*async_op=*/coder.is_on_device());
    for (Addition& each : *additions) encode(coder, spec, each);
  } else {
    for (size_t i = 0; i < inputs.size(); ++i) {
      call.calls[i].derivation = {largest_of((*additions)[i].maxima), [coder, spec, additions, i] {
                                    encode(coder, spec, (*additions)[i]);
                                  }};
    }
  }
  const int divisor = Reduction(opts.op, group.size()).divisor;
  const int64_t own = scatters ? group.rank() : 0;
  auto read = [=, results = outputs, kept = opts.errors] {
    for (size_t i = 0; i < results.size(); ++i) {
      const Addition& each = (*additions)[i];
      read_sums(coder, spec, each, divisor, own, results[i].detach());
      if (!kept.empty() && !kept[i].is_same(each.errors)) kept[i].detach().copy_(each.errors);
    }
  };
  if (coder.is_on_device()) {
    Tensors uses = outputs;
    for (const Addition& each : *additions) uses.insert(uses.end(), {each.sums, each.maxima});
    call.buffers->then({std::move(read), std::move(uses)});
  } else {
    call.buffers->then(std::move(read), outputs[0].device());
  }
  return group.launch(std::move(call));
}

}  // namespace q7x2::collectives
