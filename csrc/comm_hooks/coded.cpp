// Any codec of q7x2, with error feedback: int8, int4, one bit, top-k.
//
// The gradients of a bucket go through the compressed all-reduce as one tensor: encoded once by
// each rank, added by the owner of each part, encoded once more. What both roundings lose stays in
// the residual and is added to the next gradient:
//
//   x = residual + gradient / ranks;  (sum, lost) = coded_all_reduce(x);  residual = lost
//
// Residuals and results together are exactly the sum of what went in, on whichever rank they lie.
// One collective, of the codec's bytes; parameters that are to travel whole take a second one.
// Without error feedback the result is biased unless the codec rounds at random (":sr").
// Seide et al., "1-bit stochastic gradient descent", 2014; Karimireddy et al., "Error feedback
// fixes SignSGD and other gradient compression schemes", 2019.
#include "comm_hooks/coded.h"

#include <utility>

#include "backend/process_group.h"
#include "kernels/codec.h"

namespace q7x2 {
namespace {

/// The residuals of a bucket's coded gradients, in one piece as their codec sees them.
struct CodedLayout {
  std::vector<size_t> parameters;
  std::vector<size_t> coded;  ///< positions in the bucket's gradients
  std::vector<size_t> whole;
  at::Tensor residual;       ///< fp32, one dimension
  at::Tensor next_residual;  ///< of the step in flight
  bool used = false;
};

class CodedHook final : public Hook {
 public:
  CodedHook(const HookContext& context, CodedHookOptions options)
      : Hook(context), options_(std::move(options)), codec_(Codec::make(options_.codec)) {
    if (options_.error_feedback && !codec_->traits().keeps_error) {
      throw Error(ErrorCode::kInvalidArgument,
                  "codec '" + codec_->name() + "' cannot keep errors: turn error feedback off");
    }
  }

  size_t lanes() const override { return 2; }

  Phases reduce(Bucket& bucket) override {
    const bool in_full = options_.full_precision.at(bucket.step);
    if ((in_full && !has_residuals_) || bucket.buffer.is_sparse() || bucket.gradients.empty()) {
      bucket.buffer.mul_(1.0 / context_.world_size);
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      co_return;
    }
    CodedLayout& layout = layout_of(bucket);
    layout.used = true;
    bucket.buffer.mul_(1.0 / context_.world_size);
    if (in_full) {
      add_residuals(layout, bucket);
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      if (!all_finite(bucket.buffer)) bucket.overflowed();
      co_return;
    }

    // Where everything is coded the bucket itself goes through the codec.
    const bool is_packed = !layout.whole.empty();
    at::Tensor coded = bucket.buffer;
    at::Tensor whole;
    std::vector<bool> idle;
    {
      const PhaseTimer timer = bucket.time("pack");
      if (is_packed) {
        coded = pack(bucket, layout.coded);
        whole = pack(bucket, layout.whole);
      }
      idle = begin_residual(layout, bucket);
    }
    if (!layout.coded.empty()) {
      // Named: g++ 12 destroys the captures of a temporary in a co_await twice.
      PendingCollective::Start start = coded_all_reduce(coded, layout.next_residual, bucket);
      co_await bucket.collective(std::move(start),
                                 codec_->max_bytes(static_cast<size_t>(coded.numel())),
                                 is_packed ? Rest::kCollectives : Rest::kNone);
    }
    if (is_packed) co_await bucket.all_reduce(whole, Rest::kNone);
    const PhaseTimer timer = bucket.time("unpack");
    if (is_packed) {
      unpack(bucket, layout.coded, coded);
      unpack(bucket, layout.whole, whole);
    }
    end_residual(layout, bucket, idle);
    if (!all_finite(bucket.buffer)) bucket.overflowed();
  }

  void end_step(bool keep) override {
    for (auto entry = layouts_.begin(); entry != layouts_.end();) {
      CodedLayout& layout = entry->second;
      if (!layout.used) {  // DDP has fewer buckets now
        entry = layouts_.erase(entry);
        continue;
      }
      if (keep && options_.error_feedback) {
        std::swap(layout.residual, layout.next_residual);
        place(layout);
        has_residuals_ = true;
      }
      layout.used = false;
      ++entry;
    }
  }

  void rescale(double factor) override {
    for (const at::Tensor& residual : residuals_) {
      if (residual.defined()) residual.mul_(factor);
    }
  }

  void save(HookState&, HookState& local) const override {
    if (!options_.error_feedback) return;
    for (size_t number = 0; number < context_.parameters.size(); ++number) {
      const HookContext::Parameter& parameter = context_.parameters[number];
      if (is_whole(number) || is_empty(parameter)) continue;
      local["residual"][parameter.name] = number < residuals_.size() && residuals_[number].defined()
                                              ? residuals_[number].clone().view(parameter.shape)
                                              : at::zeros(parameter.shape, at::kFloat);
    }
  }

  void load(const HookState&, const HookState& local) override {
    std::vector<at::Tensor> residuals(context_.parameters.size());
    const auto saved = local.find("residual");
    bool found = false;
    for (size_t number = 0; saved != local.end() && number < residuals.size(); ++number) {
      const HookContext::Parameter& parameter = context_.parameters[number];
      const auto tensor = saved->second.find(parameter.name);
      if (tensor == saved->second.end() || is_whole(number)) continue;
      if (tensor->second.sizes() != at::IntArrayRef(parameter.shape)) {
        throw Error(ErrorCode::kInvalidArgument, "expected the residual of " + parameter.name +
                                                     " in shape " + c10::str(parameter.shape) +
                                                     ", got " + c10::str(tensor->second.sizes()));
      }
      residuals[number] = tensor->second.to(at::kFloat).flatten().clone();
      found = true;
    }
    residuals_ = std::move(residuals);
    layouts_.clear();
    has_residuals_ = found;
  }

 private:
  static bool is_empty(const HookContext::Parameter& parameter) {
    return c10::multiply_integers(parameter.shape) == 0;
  }

  bool is_whole(size_t number) const {
    return number < options_.whole.size() && options_.whole[number];
  }

  static ProcessGroupQ7x2& q7x2_of(c10d::ProcessGroup& group, const c10::Device& device) {
    auto* const backend = dynamic_cast<ProcessGroupQ7x2*>(group.getBackend(device.type()).get());
    if (backend == nullptr) {
      throw Error(ErrorCode::kInvalidArgument, "codecs need a process group of q7x2");
    }
    return *backend;
  }

  PendingCollective::Start coded_all_reduce(const at::Tensor& tensor, const at::Tensor& errors,
                                            const Bucket& bucket) const {
    ProcessGroupQ7x2::CodedOptions how;
    how.codec = options_.codec;
    if (options_.error_feedback) how.errors = {errors};
    how.seed = options_.seed + bucket.index;
    how.step = bucket.step;
    return [tensor, how](c10d::ProcessGroup& group) {
      std::vector<at::Tensor> tensors{tensor};
      return q7x2_of(group, tensor.device()).coded_all_reduce(tensors, how);
    };
  }

  CodedLayout& layout_of(const Bucket& bucket) {
    std::vector<size_t> parameters;
    for (const Gradient& gradient : bucket.gradients) parameters.push_back(gradient.parameter);
    const auto found = layouts_.find(bucket.index);
    if (found != layouts_.end() && found->second.parameters == parameters) return found->second;

    CodedLayout layout;
    layout.parameters = std::move(parameters);
    int64_t numel = 0;
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      const bool is_coded = !is_whole(layout.parameters[i]);
      (is_coded ? layout.coded : layout.whole).push_back(i);
      if (is_coded) numel += bucket.gradients[i].flat.numel();
    }
    if (options_.error_feedback) {
      const auto options = bucket.buffer.options().dtype(at::kFloat);
      layout.residual = at::zeros({numel}, options);
      layout.next_residual = at::empty({numel}, options);
      residuals_.resize(context_.parameters.size());
      for_each_coded(layout, [&](size_t number, int64_t offset, int64_t length) {
        if (residuals_[number].defined()) {
          layout.residual.narrow(0, offset, length).copy_(residuals_[number]);
        }
      });
      place(layout);
    }
    return layouts_[bucket.index] = std::move(layout);
  }

  /// Calls f(number, offset, length) for each parameter in the residual.
  template <typename F>
  void for_each_coded(const CodedLayout& layout, F&& f) const {
    int64_t offset = 0;
    for (const size_t i : layout.coded) {
      const size_t number = layout.parameters[i];
      const int64_t length = c10::multiply_integers(context_.parameters[number].shape);
      f(number, offset, length);
      offset += length;
    }
  }

  /// The parameters' residuals are where `layout` has them.
  void place(const CodedLayout& layout) {
    for_each_coded(layout, [&](size_t number, int64_t offset, int64_t length) {
      residuals_[number] = layout.residual.narrow(0, offset, length);
    });
  }

  /// A gradient of zero may be of a parameter that no rank used, for which DDP drops the result:
  /// its residual stays behind. Returns which, by position among the coded.
  std::vector<bool> begin_residual(CodedLayout& layout, const Bucket& bucket) const {
    std::vector<bool> idle(layout.coded.size(), false);
    if (!options_.error_feedback) return idle;
    layout.next_residual.copy_(layout.residual);
    size_t position = 0;
    for_each_coded(layout, [&](size_t, int64_t offset, int64_t length) {
      idle[position] = all_zero(bucket.gradients[layout.coded[position]].flat);
      if (idle[position]) layout.next_residual.narrow(0, offset, length).zero_();
      ++position;
    });
    return idle;
  }

  void end_residual(CodedLayout& layout, const Bucket&, const std::vector<bool>& idle) const {
    if (!options_.error_feedback) return;
    size_t position = 0;
    for_each_coded(layout, [&](size_t, int64_t offset, int64_t length) {
      if (idle[position++]) {
        layout.next_residual.narrow(0, offset, length)
            .add_(layout.residual.narrow(0, offset, length));
      }
    });
  }

  void add_residuals(CodedLayout& layout, const Bucket& bucket) const {
    if (!options_.error_feedback) return;
    size_t position = 0;
    for_each_coded(layout, [&](size_t, int64_t offset, int64_t length) {
      const at::Tensor& flat = bucket.gradients[layout.coded[position++]].flat;
      const at::Tensor residual = layout.residual.narrow(0, offset, length);
      at::Tensor left = layout.next_residual.narrow(0, offset, length);
      if (all_zero(flat)) {
        left.copy_(residual);
      } else {
        flat.add_(residual);
        left.zero_();
      }
    });
  }

  static at::Tensor pack(const Bucket& bucket, const std::vector<size_t>& positions) {
    std::vector<at::Tensor> parts;
    for (const size_t i : positions) parts.push_back(bucket.gradients[i].flat);
    return parts.empty() ? bucket.buffer.new_empty({0}) : at::cat(parts);
  }

  static void unpack(const Bucket& bucket, const std::vector<size_t>& positions,
                     const at::Tensor& packed) {
    int64_t offset = 0;
    for (const size_t i : positions) {
      const at::Tensor& flat = bucket.gradients[i].flat;
      flat.copy_(packed.narrow(0, offset, flat.numel()));
      offset += flat.numel();
    }
  }

  const CodedHookOptions options_;
  const std::shared_ptr<const Codec> codec_;
  std::map<size_t, CodedLayout> layouts_;  // by index of the bucket
  std::vector<at::Tensor> residuals_;      // by number of the parameter; views of layouts
  bool has_residuals_ = false;
};

}  // namespace

std::unique_ptr<Hook> make_coded(const HookContext& context, CodedHookOptions options) {
  return std::make_unique<CodedHook>(context, std::move(options));
}

}  // namespace q7x2
