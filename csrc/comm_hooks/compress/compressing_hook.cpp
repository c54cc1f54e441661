// One coroutine for all compressors. What happens to a bucket:
//
//   full precision, nothing kept   the bucket is summed as it is
//   full precision                 what is kept is added, and the bucket is summed
//   else                           transform -> compressor -> mean, and what was lost into the
//                                  error feedback
//
// Policies (parameter_policy.h) can leave single gradients out of that. Such a gradient travels
// whole, with its residual, beside what is never compressed; or it is skipped, and waits in its
// residual.
//
// Gradients of zeros. For a parameter that no rank used, DDP drops what was reduced, so zeros must
// come out, and residuals must stay. A rank does not know whether others have a gradient where it
// has none. With some compressors its residual waits then for its next gradient. That is not enough
// where a rank keeps what others put in, such as the rounding of their sum: with those compressors
// residuals go along, the ranks count who uses what, and undo what came of a gradient that nobody
// has.
//
// A step is a transaction: the ErrorFeedback and the compressor take over what a step leaves behind
// when all of its buckets are reduced. If one of them has Inf or NaN, or fails, none do.
#include "comm_hooks/compress/compressing_hook.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "comm_hooks/compress/exchange_facts.h"
#include "comm_hooks/compress/gradient_flags.h"
#include "comm_hooks/compress/held_state.h"
#include "comm_hooks/compress/transform_exchange.h"

namespace q7x2 {

namespace {

constexpr const char* kScale = "scale";

class CompressingHook final : public Hook {
 public:
  CompressingHook(const HookContext& context, CompressingOptions options,
                  std::unique_ptr<Compressor> compressor)
      : Hook(context),
        options_(std::move(options)),
        compressor_(std::move(compressor)),
        transform_(make_gradient_transform(options_.transform, context.world_size)),
        error_feedback_(
            context, kinds(), [this](size_t number) { return compressor_->takes(number); },
            [this](const Bucket& bucket, size_t i) { return compressor_->room(bucket, i); },
            [this](at::ScalarType dtype) { return compressor_->memory_dtype(dtype); },
            [this] { compressor_->write_down(); }),
        whole_momenta_(
            context, {{"momentum", true}},
            [this](size_t number) { return follows() && !compressor_->takes(number); },
            [](const Bucket& bucket, size_t i) { return bucket.gradients[i].flat.numel(); },
            [](at::ScalarType) { return at::kFloat; }, [] {}) {}

  size_t lanes() const override { return compressor_->lanes(); }

  Phases reduce(Bucket& bucket) override {
    const bool in_full = travels_in_full(bucket);
    if ((in_full && !error_feedback_.any() && !transform_) || !has_coded(bucket)) {
      bucket.buffer.mul_(mean_share());
      clip(bucket);
      BucketExchange plain(bucket);
      divide_whole(plain);
      measure(plain, BucketExchange(bucket));
      co_await bucket.all(summed_as_it_is(plain), Rest::kNone);
      note_facts(plain, {}, context_);
      if (!all_finite(bucket.buffer)) bucket.overflowed();
      std::vector<size_t> all(bucket.gradients.size());
      std::iota(all.begin(), all.end(), size_t{0});
      follow_whole(bucket, all, in_full);
      co_return;
    }

    BucketExchange exchange(bucket);
    BucketExchange left_out(bucket);
    divide(exchange, left_out, in_full);
    exchange.share = exchange.mean_share = mean_share();
    exchange.scale = scale_;
    const bool leaves_out = !left_out.coded.empty();
    if (in_full || transform_ || options_.clip_norm > 0 || leaves_out ||
        !compressor_->multiplies()) {
      bucket.buffer.mul_(mean_share());
      exchange.share = 1;
      clip(bucket);
    }
    Held held;
    Held held_out;
    TransformState state;
    TransformState state_out;
    std::unique_ptr<Encoding> encoding;
    MessageRound round;
    {
      const PhaseTimer timer = bucket.time(in_full ? "encode" : "pack");
      find_idle(exchange);
      held = hold_idle(exchange, *compressor_);
      if (transform_ && !(in_full && follows())) emit(exchange, *transform_, state);
      if (leaves_out) {
        find_idle(left_out);
        held_out = hold_idle(left_out, *compressor_);
        if (transform_) emit(left_out, *transform_, state_out);
      }
      measure(exchange, left_out);
      if (leaves_out) leave_out(left_out, context_.decision, exchange.whole);
      if (in_full) {
        round = in_full_precision(exchange);
      } else if (exchange.coded.empty()) {
        if (exchange.side_numel() > 0) {
          exchange.pack_side(exchange.new_side());
          round.collectives.push_back(HookCollective::sum(exchange.side));
        }
      } else {
        encoding = compressor_->begin(exchange);
        if (follows()) exchange.counts_uses = false;  // no gradient is idle
      }
    }
    if (encoding) round = encoding->encode();
    while (true) {
      const Rest rest = round.rest;
      co_await bucket.all(std::move(round.collectives), rest);
      if (encoding && !encoding->receive()) {
        drop(bucket);
        co_return;
      }
      if (rest == Rest::kNone) break;
      round = encoding->fold();
    }

    {
      if (encoding) encoding->decode();
      const PhaseTimer timer = bucket.time("unpack");
      if (exchange.side.defined()) exchange.unpack_side();
      for (size_t i = 0; i < exchange.unused.size(); ++i) {
        if (exchange.unused[i]) exchange.source(i).zero_();
      }
      note_facts(exchange, left_out.coded, context_);
      if (transform_) receive(exchange, *transform_, state, in_full);
      follow_whole(bucket, exchange.whole, in_full);
      restore_idle(exchange, held);
      take_values(exchange);
      if (leaves_out) {
        if (transform_) {
          for (size_t i = 0; i < left_out.coded.size(); ++i) {
            left_out.source(i).copy_(left_out.gradient(i).flat);
          }
          receive(left_out, *transform_, state_out, in_full);
        }
        restore_idle(left_out, held_out);
        take_values(left_out);
      }
      const bool is_looked_at = encoding && compressor_->looks_for_nonfinite();
      if (!(is_looked_at ? fits(bucket.buffer) : all_finite(bucket.buffer))) bucket.overflowed();
    }
    if (encoding && compressor_->finishes_late()) {
      bucket.reduced();
      encoding->finish();
    }
  }

  void check(size_t parameter, const ParameterPolicy& policy) const override {
    const std::string& name = context_.parameters[parameter].name;
    if (follows() && (policy.whole || policy.skip)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the hook of " + name +
                      " sends what all ranks remember: a policy can only choose its compressor");
    }
    if (policy.skip && (transform_ || !options_.error_feedback)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the gradient of " + name +
                      " can be skipped only by a hook that keeps residuals of gradients");
    }
    if (!policy.compressor.empty() && compressor_->takes(parameter)) {
      compressor_->check(parameter, policy.compressor);
    }
  }

  void commit() override {
    error_feedback_.commit();
    whole_momenta_.commit();
    compressor_->commit();
  }

  void abort() override {
    error_feedback_.abort();
    whole_momenta_.abort();
    compressor_->abort();
  }

  void rescale(double factor) override {
    error_feedback_.rescale(factor);
    whole_momenta_.rescale(factor);
    compressor_->rescale(factor);
    scale_ *= factor;
  }

  void save(HookState& shared, HookState& local) const override {
    error_feedback_.save(shared, local);
    if (follows()) whole_momenta_.save(shared, local);
    compressor_->save(shared, local);
    shared[kScale]["value"] = at::scalar_tensor(scale_, at::kDouble);
  }

  void load(const HookState& shared, const HookState& local) override {
    HookState shared_before;
    HookState local_before;
    compressor_->save(shared_before, local_before);
    compressor_->load(shared, local);
    try {
      if (follows()) whole_momenta_.load(shared, local);
      error_feedback_.load(shared, local);
    } catch (...) {
      compressor_->load(shared_before, local_before);
      throw;
    }
    const auto scale = shared.find(kScale);
    scale_ = scale == shared.end() ? 1 : scale->second.at("value").item<double>();
  }

 private:
  std::vector<ErrorFeedback::Kind> kinds() const {
    std::vector<ErrorFeedback::Kind> kinds;
    if (options_.error_feedback) kinds.push_back({"residual", false});
    if (transform_) kinds.push_back({"momentum", transform_->is_shared()});
    if (transform_ && transform_->keeps_own()) kinds.push_back({"deviation", false});
    return kinds;
  }
  /// Optimizers get a momentum, and so for all parameters.
  bool follows() const { return transform_ && transform_->is_shared(); }
  double mean_share() const { return 1.0 / context_.world_size; }

  bool has_coded(const Bucket& bucket) const {
    return std::ranges::any_of(bucket.gradients, [this](const Gradient& gradient) {
      return compressor_->takes(gradient.parameter);
    });
  }

  bool is_left_out(size_t parameter) const {
    const ParameterPolicy& policy = context_.decision.of(parameter);
    return policy.whole || policy.skip;
  }

  /// By the schedule, or because policies leave all of its gradients whole.
  bool travels_in_full(const Bucket& bucket) const {
    if (options_.full_precision.at(bucket.step)) return true;
    return !follows() && std::ranges::all_of(bucket.gradients, [this](const Gradient& gradient) {
      return !compressor_->takes(gradient.parameter) ||
             context_.decision.of(gradient.parameter).whole;
    });
  }

  /// What is compressed and what is not, and where the memory has it.
  void divide(BucketExchange& exchange, BucketExchange& left_out, bool in_full) {
    const Bucket& bucket = exchange.bucket;
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      const size_t parameter = bucket.gradients[i].parameter;
      if (!compressor_->takes(parameter)) {
        exchange.whole.push_back(i);
      } else {
        (!in_full && is_left_out(parameter) ? left_out : exchange).coded.push_back(i);
      }
    }
    compressor_->arrange(bucket, exchange.coded);
    exchange.memory = &error_feedback_.piece(bucket, exchange.coded);
    exchange.has_residual = left_out.has_residual = options_.error_feedback;
    if (!left_out.coded.empty()) {
      left_out.memory =
          &error_feedback_.piece(bucket, left_out.coded, ErrorFeedback::Part::kLeftOut);
    }
  }

  /// Of a bucket that is summed as it is: which of its gradients could be compressed.
  void divide_whole(BucketExchange& exchange) const {
    for (size_t i = 0; i < exchange.bucket.gradients.size(); ++i) {
      const bool is_coded = compressor_->takes(exchange.bucket.gradients[i].parameter);
      if (is_coded) exchange.coded.push_back(i);
    }
  }

  /// What policies want to know, if they do.
  void measure(BucketExchange& exchange, const BucketExchange& left_out) {
    if (!context_.decision.measures) return;
    if (exchange.has_residual) compressor_->write_down();
    measure_exchange(exchange, left_out.coded.empty() ? nullptr : &left_out, context_, scale_);
  }

  /// The bucket, and beside it what was measured.
  static std::vector<HookCollective> summed_as_it_is(const BucketExchange& exchange) {
    std::vector<HookCollective> collectives{HookCollective::sum(exchange.bucket.buffer)};
    if (exchange.facts.defined()) collectives.push_back(HookCollective::sum(exchange.facts));
    return collectives;
  }

  /// What came out for a transform becomes the gradients.
  static void take_values(const BucketExchange& exchange) {
    if (!exchange.values.defined()) return;
    for (size_t i = 0; i < exchange.coded.size(); ++i) {
      exchange.gradient(i).flat.copy_(exchange.source(i));
    }
  }

  void find_idle(BucketExchange& exchange) const {
    if (follows()) {  // it has something to send without a gradient
      exchange.idle.assign(exchange.coded.size(), false);
      return;
    }
    std::vector<at::Tensor> flats;
    for (const size_t i : exchange.coded) flats.push_back(exchange.bucket.gradients[i].flat);
    exchange.idle = are_zero(flats);
  }

  // ---- the transform

  /// Gradients that travel whole have the momentum of those that do not.
  void follow_whole(const Bucket& bucket, const std::vector<size_t>& whole, bool in_full) {
    if (!follows() || whole.empty() || bucket.buffer.is_sparse()) return;
    ErrorFeedback::Piece& memory = whole_momenta_.piece(bucket, whole);
    TransformState state;
    state.now = memory.now[0];
    state.next = memory.next[0];
    state.values = at::empty_like(state.now);
    for (size_t i = 0; i < whole.size(); ++i) {
      memory.at(state.values, i).copy_(bucket.gradients[whole[i]].flat);
    }
    transform_->follow(state);
    for (size_t i = 0; i < whole.size() && !in_full; ++i) {
      bucket.gradients[whole[i]].flat.copy_(memory.next_of(0, i));
    }
  }

  /// Nothing stays behind: residuals leave with what is sent.
  MessageRound in_full_precision(BucketExchange& exchange) {
    if (options_.error_feedback && !follows()) {
      compressor_->write_down();
      for (size_t i = 0; i < exchange.coded.size(); ++i) {
        at::Tensor next = exchange.memory->next_of(kResidual, i);
        if (!exchange.idle[i]) exchange.source(i).add_(exchange.memory->now_of(kResidual, i));
        next.zero_();
      }
    }
    if (!exchange.values.defined()) return {summed_as_it_is(exchange), Rest::kNone};
    MessageRound round;
    if (exchange.side_numel() > 0) {
      exchange.pack_side(exchange.new_side());
      round.collectives.push_back(HookCollective::sum(exchange.side));
    }
    round.collectives.push_back(HookCollective::sum(exchange.values));
    return round;
  }

  void clip(const Bucket& bucket) const {
    if (options_.clip_norm == 0 || bucket.buffer.is_sparse()) return;
    const PhaseTimer timer = bucket.time("clip");
    const double limit = scale_ * options_.clip_norm / context_.world_size;
    for (const Gradient& gradient : bucket.gradients) {
      if (!compressor_->takes(gradient.parameter)) continue;
      const auto type = gradient.flat.scalar_type();
      const at::Tensor norm = gradient.flat.norm(2, type == at::kDouble ? type : at::kFloat);
      const at::Tensor factor = (limit / norm.to(at::kDouble)).clamp_max(1);
      gradient.flat.mul_(at::where(factor.isnan(), 1, factor).to(type));
    }
  }

  /// GradScaler finds in the gradients what the hook found in the messages.
  static void drop(Bucket& bucket) {
    bucket.buffer.fill_(std::numeric_limits<double>::quiet_NaN());
    bucket.overflowed();
  }

  const CompressingOptions options_;
  const std::unique_ptr<Compressor> compressor_;
  const std::unique_ptr<GradientTransform> transform_;
  ErrorFeedback error_feedback_;
  ErrorFeedback whole_momenta_;  // of what the compressor does not take
  double scale_ = 1;             // of the gradients: AMP's
};

}  // namespace

MakeHook compressing_hook(CompressingOptions options, MakeCompressor make_compressor) {
  return [options = std::move(options), make_compressor = std::move(make_compressor)](
             const HookContext& context) -> std::unique_ptr<Hook> {
    return std::make_unique<CompressingHook>(context, options, make_compressor(context, options));
  };
}

}  // namespace q7x2
