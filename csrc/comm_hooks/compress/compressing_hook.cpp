// One coroutine for all compressors. How a bucket is processed:
//
//   full precision, no residuals    the bucket is summed without compression
//   full precision                  residuals are added, and the bucket is summed
//   otherwise                       transform -> compressor -> mean; the error goes into the error
//                                   feedback
//
// Policies (parameter_policy.h) can leave single gradients out. Such a gradient is sent whole, with
// its residual, together with what is never compressed; or it is skipped, and added to its
// residual.
//
// Gradients of zeros. For a parameter that no rank used, DDP drops the reduced gradient, so the
// result must be zeros, and residuals must stay. A rank does not know whether others have a
// gradient if its own is zeros. With some compressors its residual then waits for its next
// gradient. That is not enough if a rank keeps something of the others' contributions, such as the
// rounding of their sum. With those compressors residuals are sent too, the ranks count the users
// of each gradient, and undo the effect on a gradient that no rank has.
//
// A step is a transaction: the ErrorFeedback and the compressor adopt the new state of a step when
// all of its buckets are reduced. If one of them has Inf or NaN, or fails, they keep the old state.
#include "comm_hooks/compress/compressing_hook.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm_hooks/compress/exchange_facts.h"
#include "comm_hooks/compress/held_state.h"
#include "comm_hooks/compress/transform_exchange.h"

namespace q7x2 {

namespace {

constexpr const char* kScale = "scale";

/// Gradients of a bucket that are treated alike: either those that are compressed, or those that
/// policies leave out.
struct Part {
  BucketExchange exchange;
  Held held = {};  // for gradients of zeros
  TransformState state = {};
};

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
    if (!has_coded(bucket) || (in_full && !error_feedback_.any() && !transform_)) {
      BucketExchange plain = prepare_plain(bucket);
      co_await bucket.all(plain.whole_sums(), Rest::kNone);
      end_plain(plain, in_full);
      co_return;
    }

    std::vector<Part> parts = divide(bucket, in_full);
    scale(parts, in_full);
    prepare(parts, in_full);
    std::unique_ptr<Encoding> encoding = begin(parts.front().exchange, in_full);
    MessageRound round =
        encoding ? encoding->encode() : uncompressed(parts.front().exchange, in_full);
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
    if (encoding) encoding->decode();
    end(parts, in_full, encoding && compressor_->looks_for_nonfinite());
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
  /// Whether optimizers get a momentum instead of a gradient, and so for all parameters.
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

  /// Whether nothing is compressed: because of the schedule, or because policies leave all
  /// gradients whole.
  bool travels_in_full(const Bucket& bucket) const {
    if (options_.full_precision.at(bucket.step)) return true;
    return !follows() && std::ranges::all_of(bucket.gradients, [this](const Gradient& gradient) {
      return !compressor_->takes(gradient.parameter) ||
             context_.decision.of(gradient.parameter).whole;
    });
  }

  // ---- a bucket without compression

  /// Scales and measures the bucket. `coded` lists the gradients that could be compressed.
  BucketExchange prepare_plain(Bucket& bucket) {
    bucket.buffer.mul_(mean_share());
    clip(bucket);
    BucketExchange plain(bucket);
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      if (compressor_->takes(bucket.gradients[i].parameter)) plain.coded.push_back(i);
    }
    measure(plain, nullptr);
    return plain;
  }

  void end_plain(const BucketExchange& plain, bool in_full) {
    const Bucket& bucket = plain.bucket;
    note_facts(plain, {}, context_);
    if (!all_finite(bucket.buffer)) plain.bucket.overflowed();
    std::vector<size_t> all(bucket.gradients.size());
    std::iota(all.begin(), all.end(), size_t{0});
    follow_whole(bucket, all, in_full);
  }

  // ---- a bucket with compression

  /// The gradients that are compressed, followed by those that policies leave out, if any.
  std::vector<Part> divide(Bucket& bucket, bool in_full) {
    BucketExchange coded(bucket);
    BucketExchange left_out(bucket);
    coded.has_residual = left_out.has_residual = options_.error_feedback;
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      const size_t parameter = bucket.gradients[i].parameter;
      if (!compressor_->takes(parameter)) {
        coded.whole.push_back(i);
      } else {
        (!in_full && is_left_out(parameter) ? left_out : coded).coded.push_back(i);
      }
    }
    compressor_->arrange(bucket, coded.coded);
    coded.memory = &error_feedback_.piece(bucket, coded.coded);
    std::vector<Part> parts;
    parts.push_back({std::move(coded)});
    if (!left_out.coded.empty()) {
      left_out.memory =
          &error_feedback_.piece(bucket, left_out.coded, ErrorFeedback::Part::kLeftOut);
      parts.push_back({std::move(left_out)});
    }
    return parts;
  }

  /// Makes gradients this rank's shares, now or in the compressor's first pass.
  void scale(std::vector<Part>& parts, bool in_full) {
    BucketExchange& coded = parts.front().exchange;
    coded.share = coded.mean_share = mean_share();
    coded.scale = scale_;
    const bool can_wait = compressor_->multiplies() && !in_full && !transform_ &&
                          options_.clip_norm == 0 && parts.size() == 1;
    if (can_wait) return;
    coded.bucket.buffer.mul_(mean_share());
    coded.share = 1;
    clip(coded.bucket);
  }

  /// Computes what is sent of each part, before residuals are added.
  void prepare(std::vector<Part>& parts, bool in_full) {
    BucketExchange& coded = parts.front().exchange;
    const PhaseTimer timer = coded.bucket.time(in_full ? "encode" : "pack");
    for (auto& [exchange, held, state] : parts) {
      find_idle(exchange);
      held = hold_idle(exchange, *compressor_);
      if (transform_ && !(in_full && follows())) emit(exchange, *transform_, state);
    }
    const BucketExchange* left_out = parts.size() > 1 ? &parts.back().exchange : nullptr;
    measure(coded, left_out);
    if (left_out != nullptr) leave_out(*left_out, context_.decision, coded.whole);
  }

  /// Null if nothing is compressed.
  std::unique_ptr<Encoding> begin(BucketExchange& exchange, bool in_full) {
    if (in_full || exchange.coded.empty()) return nullptr;
    const PhaseTimer timer = exchange.bucket.time("pack");
    std::unique_ptr<Encoding> encoding = compressor_->begin(exchange);
    if (follows()) exchange.counts_uses = false;  // no gradient is idle
    return encoding;
  }

  /// The messages of a bucket in which nothing is compressed.
  MessageRound uncompressed(BucketExchange& exchange, bool in_full) {
    const PhaseTimer timer = exchange.bucket.time(in_full ? "encode" : "pack");
    if (in_full) send_residuals(exchange);
    if (in_full && !exchange.values.defined()) return {exchange.whole_sums(), Rest::kNone};
    std::vector<HookCollective> collectives;
    if (exchange.side_numel() > 0) {
      exchange.pack_side(exchange.new_side());
      collectives.push_back(HookCollective::sum(exchange.side));
    }
    if (in_full) collectives.push_back(HookCollective::sum(exchange.values));
    return {std::move(collectives), Rest::kNone};
  }

  /// Writes the means to the gradients; the memory already has this rank's errors.
  /// `looks_for_nonfinite`: the compressor has already searched for values that are not finite.
  void end(std::vector<Part>& parts, bool in_full, bool looks_for_nonfinite) {
    BucketExchange& coded = parts.front().exchange;
    Bucket& bucket = coded.bucket;
    const PhaseTimer timer = bucket.time("unpack");
    if (coded.side.defined()) coded.unpack_side();
    for (size_t i = 0; i < coded.unused.size(); ++i) {
      if (coded.unused[i]) coded.source(i).zero_();
    }
    const bool leaves_out = parts.size() > 1;
    note_facts(coded, leaves_out ? parts.back().exchange.coded : std::vector<size_t>(), context_);
    follow_whole(bucket, coded.whole, in_full);
    for (auto& [exchange, held, state] : parts) {
      if (transform_) {
        if (&exchange != &coded) give_values(exchange);
        receive(exchange, *transform_, state, in_full);
      }
      restore_idle(exchange, held);
      take_values(exchange);
    }
    const bool is_finite = looks_for_nonfinite ? fits(bucket.buffer) : all_finite(bucket.buffer);
    if (!is_finite) bucket.overflowed();
  }

  /// Measures what policies want to know, if anything.
  void measure(BucketExchange& exchange, const BucketExchange* left_out) {
    if (!context_.decision.measures) return;
    if (exchange.has_residual) compressor_->write_down();
    measure_exchange(exchange, left_out, context_, scale_);
  }

  void find_idle(BucketExchange& exchange) const {
    if (follows()) {  // even without a gradient it has something to send
      exchange.idle.assign(exchange.coded.size(), false);
      return;
    }
    exchange.idle = idle_gradients(exchange);
  }

  // ---- the transform

  /// Gradients that are sent whole get the same momentum as the others.
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

  /// Sends the residuals too, so that none is left.
  void send_residuals(const BucketExchange& exchange) const {
    if (!options_.error_feedback || follows()) return;
    compressor_->write_down();
    for (size_t i = 0; i < exchange.coded.size(); ++i) {
      at::Tensor next = exchange.memory->next_of(kResidual, i);
      if (!exchange.idle[i]) exchange.source(i).add_(exchange.memory->now_of(kResidual, i));
      next.zero_();
    }
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

  /// Marks the gradients, so that GradScaler finds what the hook found in the messages.
  static void drop(Bucket& bucket) {
    bucket.buffer.fill_(std::numeric_limits<double>::quiet_NaN());
    bucket.overflowed();
  }

  const CompressingOptions options_;
  const std::unique_ptr<Compressor> compressor_;
  const std::unique_ptr<GradientTransform> transform_;
  ErrorFeedback error_feedback_;
  ErrorFeedback whole_momenta_;  // for gradients that the compressor does not take
  double scale_ = 1;             // AMP's scale, a factor in the gradients
};

}  // namespace

MakeHook compressing_hook(CompressingOptions options, MakeCompressor make_compressor) {
  return [options = std::move(options), make_compressor = std::move(make_compressor)](
             const HookContext& context) -> std::unique_ptr<Hook> {
    return std::make_unique<CompressingHook>(context, options, make_compressor(context, options));
  };
}

}  // namespace q7x2
