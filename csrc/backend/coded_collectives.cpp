// The compressed collectives. Each checks its arguments, and describes its calls to the executor.
#include <array>
#include <utility>

#include "backend/argument_checks.h"
#include "backend/collectives.h"
#include "backend/plain_tensors.h"
#include "executor/collective/plan_call.h"
#include "kernels/codec/random.h"
#include "kernels/cpu/convert.h"

namespace q7x2::collectives {

using c10d::OpType;

namespace {

constexpr const char* kNone = "none";
constexpr const char* kAuto = "auto";
/// Not a codec: blocks of zeros are not sent.
constexpr const char* kBlocks = "blocks";
/// Sends fp32 unchanged. Used for calls that need a codec for residuals or for checks of the
/// result.
constexpr const char* kExact = "fp32";
/// The codecs that "auto" chooses from.
constexpr std::array kCandidates = {"bf16", "fp16", "fp8_e4m3", "int8",   "int6",
                                    "int4", "int3", "int2",     "onebit", "topk:0.01"};

bool adds_integers(GroupCalls& group, const CodedOptions& opts) {
  return opts.codec != kNone && opts.codec != kAuto &&
         group.codecs().get(opts.codec)->traits().linear;
}

void check_not_balanced(const Complain& fn, GroupCalls& group, const CodedOptions& opts) {
  require(fn,
          opts.codec == kNone || opts.codec == kAuto ||
              !group.codecs().get(opts.codec)->spec().balanced,
          "codec '" + opts.codec + "' balances the parts of an all_reduce, but the parts of this " +
              "collective are fixed: expected one without ':balanced'");
}

/// The checks of all compressed collectives. `inputs`: the tensors that are encoded.
void check_coded(const Complain& fn, const Tensors& inputs, const CodedOptions& opts) {
  require(fn, !inputs.empty(), "requires non-empty tensor list");
  check_dense(fn, inputs);
  for (const at::Tensor& input : inputs) {
    require(fn, is_float(reducible_dtype(input)),
            c10::str("codecs are for floating point tensors, got ", input.scalar_type()));
    check_storage(input);
  }
  const auto op = static_cast<c10d::ReduceOp::RedOpType>(opts.op);
  require(fn, op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG,
          "a compressed reduction is a SUM or an AVG");
  if (opts.errors.empty()) {
    return;
  }
  require(
      fn, opts.errors.size() == inputs.size(),
      c10::str("expected one residual per tensor: ", inputs.size(), ", got ", opts.errors.size()));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& errors = opts.errors[i];
    require(fn, errors.scalar_type() == at::kFloat && errors.numel() == inputs[i].numel(),
            c10::str("residual ", i, ": expected float32 with ", inputs[i].numel(),
                     " elements, got ", errors.scalar_type(), " with ", errors.numel()));
    check_storage(errors);
    require(fn, is_plain(errors),
            c10::str("residual ", i, ": expected a contiguous tensor, no negative view"));
  }
}

/// The codec for "auto"; null if sending uncompressed takes the least time.
std::shared_ptr<const Codec> cheapest_codec(GroupCalls& group, CollectiveCall call,
                                            double max_error) {
  call.algorithms = algorithms_of_thread();  // the same as the call will have
  call.coding.codec = nullptr;
  std::shared_ptr<const Codec> best;
  const std::shared_ptr<Planner> planner = group.planner_of(call);
  double least = planner->choose(shape_of(call)).seconds;
  for (const char* name : kCandidates) {
    call.coding.codec = group.codecs().get(name);
    if (call.coding.codec->normal_error() > max_error) continue;
    const double seconds = planner->choose(shape_of(call)).seconds;
    if (seconds < least) {
      least = seconds;
      best = call.coding.codec;
    }
  }
  return best;
}

/// The codec of a call; null: its messages are not compressed.
std::shared_ptr<const Codec> codec_of(GroupCalls& group, const CollectiveCall& call,
                                      const CodedOptions& opts) {
  std::shared_ptr<const Codec> chosen;
  if (opts.codec == kAuto) {
    chosen = cheapest_codec(group, call, opts.max_error);
  } else if (opts.codec != kNone) {
    chosen = group.codecs().get(opts.codec);
  }
  if (chosen == nullptr && (!opts.errors.empty() || opts.refuses_nonfinite)) {
    chosen = group.codecs().get(kExact);
  }
  return chosen;
}

/// Sets the compression of the call that was added last. `index`: the index of its tensor.
void add_coding(GroupCalls& group, CallBuilder& call, const CodedOptions& opts, size_t index,
                uint64_t step) {
  TensorCall& each = call.calls.back();
  Coding& coding = each.call.coding;
  coding.edges = opts.edges;
  coding.codec = codec_of(group, each.call, opts);
  if (coding.codec == nullptr) {
    return;
  }
  coding.keys.shared = mix_keys(mix_keys(opts.seed, step), index);
  coding.keys.rounding = mix_keys(coding.keys.shared, static_cast<uint64_t>(group.rank()));
  coding.refuses_nonfinite = opts.refuses_nonfinite;
  if (!opts.errors.empty()) {
    TORCH_CHECK(coding.codec->traits().keeps_error, "q7x2: codec '", coding.codec->name(),
                "' takes no residual: its decoded values do not approximate the input");
    each.keeps_errors(opts.errors[index]);
  }
}

}  // namespace

WorkPointer coded_all_reduce(GroupCalls& group, Tensors& tensors, const CodedOptions& opts) {
  if (opts.codec == kBlocks) return block_all_reduce(group, tensors, opts);
  const Complain fn = group.enter("coded_all_reduce");
  check_coded(fn, tensors, opts);
  const uint64_t step = opts.step.value_or(group.next_coded_call());
  const Reduction reduction(opts.op, group.size());
  CallBuilder call{group.size(), OpType::ALLREDUCE, "q7x2:coded_all_reduce", tensors, {tensors},
                   opts.timeout, opts.async_op};
  if (adds_integers(group, opts)) {
    return add_integers(group, std::move(call), tensors, tensors, opts, step);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    call.add_all_reduce(tensors[i], reduction);
    add_coding(group, call, opts, i, step);
  }
  return group.launch(std::move(call));
}

WorkPointer coded_reduce_scatter(GroupCalls& group, Tensors& outputs, Tensors& inputs,
                                 const CodedOptions& opts) {
  const Complain fn = group.enter("coded_reduce_scatter");
  check_coded(fn, inputs, opts);
  check_not_balanced(fn, group, opts);
  require(fn, outputs.size() == inputs.size(),
          "requires input/output tensor lists to have the same length");
  const uint64_t step = opts.step.value_or(group.next_coded_call());
  const Reduction reduction(opts.op, group.size());
  CallBuilder call{
      group.size(), OpType::REDUCE_SCATTER, "q7x2:coded_reduce_scatter", inputs, {outputs},
      opts.timeout, opts.async_op};
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dense(fn, {outputs[i]});
    check_same_type(fn, inputs[i], {outputs[i]});
    require(fn, inputs[i].numel() == outputs[i].numel() * group.size(),
            c10::str("input ", i, " must have world size times the elements of its output: ",
                     outputs[i].numel() * group.size(), ", got ", inputs[i].numel()));
  }
  if (adds_integers(group, opts)) {
    return add_integers(group, std::move(call), outputs, inputs, opts, step);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    call.add_reduce_scatter(outputs[i], {inputs[i]}, reduction);
    add_coding(group, call, opts, i, step);
  }
  return group.launch(std::move(call));
}

WorkPointer coded_all_gather(GroupCalls& group, Tensors& outputs, Tensors& inputs,
                             const CodedOptions& opts) {
  const Complain fn = group.enter("coded_all_gather");
  check_coded(fn, inputs, opts);
  check_not_balanced(fn, group, opts);
  require(fn, !adds_integers(group, opts),
          "codec '" + opts.codec + "' adds integers: it is for all_reduce and reduce_scatter, " +
              "expected one such as int8");
  require(fn, outputs.size() == inputs.size(),
          "requires input/output tensor lists to have the same length");
  const uint64_t step = opts.step.value_or(group.next_coded_call());
  CallBuilder call{group.size(),
                   OpType::_ALLGATHER_BASE,
                   "q7x2:coded_all_gather",
                   inputs,
                   {outputs},
                   opts.timeout,
                   opts.async_op};
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dense(fn, {outputs[i]});
    check_same_type(fn, inputs[i], {outputs[i]});
    require(fn, outputs[i].numel() == inputs[i].numel() * group.size(),
            c10::str("output ", i, " must have world size times the elements of its input: ",
                     inputs[i].numel() * group.size(), ", got ", outputs[i].numel()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    call.add_into_tensor(outputs[i], inputs[i]);
    call.calls.back().call.dtype = reducible_dtype(inputs[i]);
    add_coding(group, call, opts, i, step);
  }
  return group.launch(std::move(call));
}

}  // namespace q7x2::collectives
