// Compressed reductions with codecs whose integers add (kernels/sum_int.h): ranks agree on the
// scales, by a maximum over each group of elements, and then add integers with any dense Plan.
//
// An all-reduce has one region; a reduce-scatter as many as there are ranks, each of which begins
// with a group of its own, so that its owner knows all its scales.
//
// A device with kernels makes the integers, and reads their sums: only maxima and integers pass to
// the host and back, in the order of streams.
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend/argument_checks.h"
#include "backend/process_group.h"
#include "kernels/codec.h"
#include "kernels/codec_kernels.h"
#include "kernels/random.h"
#include "kernels/sum_int.h"
#include "kernels/value_elements.h"

namespace q7x2 {
namespace {

/// One tensor on its way.
struct Addition {
  at::Tensor floats;  // fp32, where the integers are made; this and the next: regions x elements
  at::Tensor codes;
  at::Tensor errors;
  at::Tensor maxima;                // regions x groups
  at::Tensor sums;                  // of the codes of this rank's region
  std::vector<SumIntBlock> blocks;  // by region
};

at::ScalarType integers_of(int bits) {
  return bits == 8 ? at::kChar : bits == 16 ? at::kShort : at::kInt;
}

/// Who makes the integers: the host, or the tensors' device on its current stream.
class IntegerCoder {
 public:
  IntegerCoder(const ValueSpec& spec, int levels, const std::vector<at::Tensor>& tensors)
      : spec_(spec), levels_(levels) {
    const c10::Device device = tensors[0].device();
    const bool is_one = std::ranges::all_of(
        tensors, [&](const at::Tensor& tensor) { return tensor.device() == device; });
    if (device.is_cpu() || !is_one) return;
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
  const CodecKernels* kernels_ = nullptr;  // null: the host
};

}  // namespace

// Two dependent collectives. On the host the first blocks the caller: it is short, and so the order
// of collectives is that of the calls.
c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::add_integers(
    Launch call, const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
    const CodedOptions& opts, uint64_t step) {
  const c10::AutoGradMode no_grad(false);
  const std::shared_ptr<const Codec> integers = codec(opts.codec);
  TORCH_CHECK(!opts.refuses_nonfinite, "q7x2: codec '", integers->name(),
              "' cannot refuse what is not finite: expected nonfinite=\"propagate\"");
  TORCH_CHECK(opts.edges == EdgeWish::kAuto || opts.edges == EdgeWish::kAll, "q7x2: codec '",
              integers->name(),
              "' adds integers on all edges: expected edges=\"auto\" or \"all\", got \"",
              to_string(opts.edges), '"');
  const ValueSpec spec = integers->spec().value;
  int levels = 0;
  try {
    levels = sum_int_levels(spec, size_);
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
  std::vector<at::Tensor> tensors = inputs;
  tensors.insert(tensors.end(), opts.errors.begin(), opts.errors.end());
  const IntegerCoder coder(spec, levels, tensors);
  const c10::OptionalDeviceGuard guard(coder.is_on_device() ? std::optional(coder.device())
                                                            : std::nullopt);
  const at::TensorOptions options = at::TensorOptions().device(coder.device());
  const bool scatters = call.type == c10d::OpType::REDUCE_SCATTER;
  const int64_t regions = scatters ? size_ : 1;
  auto additions = std::make_shared<std::vector<Addition>>();
  Tensors maxima;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t elements = inputs[i].numel() / regions;
    const auto count = static_cast<size_t>(elements);
    Addition each;
    each.floats = inputs[i].detach().to(coder.device(), at::kFloat).contiguous();
    each.maxima = at::empty({regions, static_cast<int64_t>(num_groups(spec, count))},
                            options.dtype(at::kFloat));
    each.codes = at::empty({regions, elements}, options.dtype(integers_of(spec.bits)));
    each.sums = scatters ? at::empty({elements}, each.codes.options()) : each.codes;
    if (!opts.errors.empty()) each.errors = opts.errors[i].to(coder.device());
    const uint64_t key =
        mix_keys(mix_keys(mix_keys(opts.seed, step), i), static_cast<uint64_t>(rank_));
    for (int64_t region = 0; region < regions; ++region) {
      float* const errors =
          opts.errors.empty() ? nullptr : each.errors.mutable_data_ptr<float>() + region * elements;
      each.blocks.push_back({each.floats.const_data_ptr<float>() + region * elements, errors, count,
                             mix_keys(key, static_cast<uint64_t>(region))});
      coder.find_maxima(each.blocks.back(), each.maxima[region].mutable_data_ptr<float>());
    }
    maxima.push_back(each.maxima);
    additions->push_back(std::move(each));
  }
  c10d::AllreduceCoalescedOptions largest;
  largest.reduceOp = c10d::ReduceOp::MAX;
  largest.timeout = opts.timeout;
  largest.asyncOp = false;
  allreduce_coalesced(maxima, largest)->wait();

  const Reduction sum(c10d::ReduceOp::SUM, size_);
  for (size_t i = 0; i < inputs.size(); ++i) {
    Addition& each = (*additions)[i];
    for (int64_t region = 0; region < regions; ++region) {
      coder.encode(each.blocks[static_cast<size_t>(region)],
                   each.maxima[region].const_data_ptr<float>(),
                   each.codes[region].mutable_data_ptr());
    }
    if (scatters) {
      add_reduce_scatter(call, each.sums, split_region(contribution(call, each.codes, sum)), sum);
    } else {
      add_all_reduce(call, each.sums, sum);
    }
    // The integers do not tell what they are made from, and how the sum is used.
    call.calls.back().agreed =
        static_cast<uint32_t>(inputs[i].scalar_type()) << 8 |
        static_cast<uint32_t>(static_cast<c10d::ReduceOp::RedOpType>(opts.op));
  }
  const int divisor = Reduction(opts.op, size_).divisor;
  const int64_t own = scatters ? rank_ : 0;
  auto read = [=, results = outputs, kept = opts.errors] {
    for (size_t i = 0; i < results.size(); ++i) {
      const Addition& each = (*additions)[i];
      at::Tensor result = results[i].detach();
      const at::Tensor floats = at::empty({result.numel()}, each.floats.options());
      coder.decode(each.sums.const_data_ptr(), each.maxima[own].const_data_ptr<float>(), divisor,
                   floats.mutable_data_ptr<float>(), each.blocks[0].count);
      result.copy_(floats.view(result.sizes()));
      if (!kept.empty() && !kept[i].is_same(each.errors)) kept[i].detach().copy_(each.errors);
    }
  };
  if (coder.is_on_device()) {
    std::vector<at::Tensor> uses = outputs;
    for (const Addition& each : *additions) uses.insert(uses.end(), {each.sums, each.maxima});
    call.buffers->then({std::move(read), std::move(uses)});
  } else {
    call.buffers->then(std::move(read), outputs[0].device());
  }
  return launch(std::move(call));
}

}  // namespace q7x2
