// One coroutine for all compressors. What happens to a bucket:
//
//   full precision, nothing kept   the bucket is summed as it is
//   full precision                 what is kept is added, and the bucket is summed
//   else                           signal -> compressor -> mean, and what was lost into the memory
//
// Gradients of zeros. For a parameter that no rank used, DDP drops what was reduced. So a rank
// keeps the residual of such a gradient until it has one to send along. Where all ranks have zeros,
// zeros must come out; compressors that do not see to that by themselves have the ranks count who
// uses what.
//
// A step is a transaction: the Memory and the compressor take over what a step leaves behind when
// all of its buckets are reduced. If one of them has Inf or NaN, or fails, none do.
#include "comm_hooks/compressing_hook.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "comm_hooks/gradient_flags.h"
#include "comm_hooks/signal.h"

namespace q7x2 {

namespace {

constexpr size_t kResidual = 0;  // the memory's kind of it, with error feedback
constexpr const char* kScale = "scale";

/// What the memory held for idle gradients before the step: by position, then by kind.
using Held = std::vector<std::pair<size_t, std::vector<at::Tensor>>>;

class CompressingHook final : public Hook {
 public:
  CompressingHook(const HookContext& context, CompressingOptions options,
                  std::unique_ptr<Compressor> compressor)
      : Hook(context),
        options_(std::move(options)),
        compressor_(std::move(compressor)),
        signal_(make_signal(options_.signal, context.world_size)),
        memory_(
            context, kinds(), [this](size_t number) { return compressor_->takes(number); },
            [this](at::ScalarType dtype) { return compressor_->memory_dtype(dtype); },
            [this] { compressor_->write_down(); }),
        whole_momenta_(
            context, {{"momentum", true}},
            [this](size_t number) { return follows() && !compressor_->takes(number); },
            [](at::ScalarType) { return at::kFloat; }, [] {}) {}

  size_t lanes() const override { return compressor_->lanes(); }

  Phases reduce(Bucket& bucket) override {
    const bool in_full = options_.full_precision.at(bucket.step);
    if ((in_full && !memory_.any() && !signal_) || !has_coded(bucket)) {
      bucket.buffer.mul_(mean_share());
      clip(bucket);
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      if (!all_finite(bucket.buffer)) bucket.overflowed();
      std::vector<size_t> all(bucket.gradients.size());
      std::iota(all.begin(), all.end(), size_t{0});
      follow_whole(bucket, all, in_full);
      co_return;
    }

    BucketExchange exchange(bucket);
    divide(exchange);
    exchange.share = exchange.mean_share = mean_share();
    exchange.scale = scale_;
    if (in_full || signal_ || options_.clip_norm > 0 || !compressor_->multiplies()) {
      bucket.buffer.mul_(mean_share());
      exchange.share = 1;
      clip(bucket);
    }
    Held held;
    SignalState state;
    std::unique_ptr<Encoding> encoding;
    MessageRound round;
    {
      const PhaseTimer timer = bucket.time(in_full ? "encode" : "pack");
      find_idle(exchange);
      held = hold(exchange);
      if (signal_ && !(in_full && follows())) emit(exchange, state);
      if (in_full) {
        round = in_full_precision(exchange);
      } else {
        encoding = compressor_->begin(exchange);
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
      std::vector<bool> unused;
      if (encoding) encoding->decode();
      const PhaseTimer timer = bucket.time("unpack");
      if (exchange.side.defined()) unused = exchange.unpack_side();
      for (size_t i = 0; i < unused.size(); ++i) {
        if (unused[i]) clear(exchange, i);
      }
      if (signal_) receive(exchange, state, in_full);
      follow_whole(bucket, exchange.whole, in_full);
      restore(exchange, held);
      if (exchange.values.defined()) {
        for (size_t i = 0; i < exchange.coded.size(); ++i) {
          exchange.gradient(i).flat.copy_(exchange.source(i));
        }
      }
      const bool is_looked_at = encoding && compressor_->looks_for_nonfinite();
      if (!(is_looked_at ? fits(bucket.buffer) : all_finite(bucket.buffer))) bucket.overflowed();
    }
    if (encoding && compressor_->finishes_late()) {
      bucket.reduced();
      encoding->finish();
    }
  }

  void commit() override {
    memory_.commit();
    whole_momenta_.commit();
    compressor_->commit();
  }

  void abort() override {
    memory_.abort();
    whole_momenta_.abort();
    compressor_->abort();
  }

  void rescale(double factor) override {
    memory_.rescale(factor);
    whole_momenta_.rescale(factor);
    compressor_->rescale(factor);
    scale_ *= factor;
  }

  void save(HookState& shared, HookState& local) const override {
    memory_.save(shared, local);
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
      memory_.load(shared, local);
    } catch (...) {
      compressor_->load(shared_before, local_before);
      throw;
    }
    const auto scale = shared.find(kScale);
    scale_ = scale == shared.end() ? 1 : scale->second.at("value").item<double>();
  }

 private:
  std::vector<Memory::Kind> kinds() const {
    std::vector<Memory::Kind> kinds;
    if (options_.error_feedback) kinds.push_back({"residual", false});
    if (signal_) kinds.push_back({"momentum", signal_->is_shared()});
    if (signal_ && signal_->keeps_own()) kinds.push_back({"deviation", false});
    return kinds;
  }
  /// Optimizers get a momentum, and so for all parameters.
  bool follows() const { return signal_ && signal_->is_shared(); }
  size_t momentum_kind() const { return options_.error_feedback ? 1 : 0; }
  double mean_share() const { return 1.0 / context_.world_size; }

  bool has_coded(const Bucket& bucket) const {
    return std::ranges::any_of(bucket.gradients, [this](const Gradient& gradient) {
      return compressor_->takes(gradient.parameter);
    });
  }

  /// What is compressed and what is not, and where the memory has it.
  void divide(BucketExchange& exchange) {
    const Bucket& bucket = exchange.bucket;
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      const bool is_coded = compressor_->takes(bucket.gradients[i].parameter);
      (is_coded ? exchange.coded : exchange.whole).push_back(i);
    }
    compressor_->arrange(bucket, exchange.coded);
    exchange.memory = &memory_.piece(bucket, exchange.coded);
    exchange.has_residual = options_.error_feedback;
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

  /// What idle gradients have in the memory: they get it back after the step.
  Held hold(const BucketExchange& exchange) {
    Held held;
    const Memory::Piece& memory = *exchange.memory;
    for (size_t i = 0; i < exchange.idle.size(); ++i) {
      if (!exchange.idle[i] || memory.now.empty()) continue;
      if (held.empty()) compressor_->write_down();
      std::vector<at::Tensor>& kept = held.emplace_back(i, std::vector<at::Tensor>()).second;
      for (size_t kind = 0; kind < memory.now.size(); ++kind) {
        const at::Tensor now = memory.now_of(kind, i);
        kept.push_back(memory.has_copy(kind) ? now : now.clone());
      }
    }
    return held;
  }

  void restore(const BucketExchange& exchange, const Held& held) const {
    for (const auto& [i, kept] : held) {
      for (size_t kind = 0; kind < kept.size(); ++kind) {
        at::Tensor next = exchange.memory->next_of(kind, i);
        // An idle gradient's residual was not sent, but its owner's roundings may be in it.
        if (options_.error_feedback && kind == kResidual) {
          next.add_(kept[kind]);
        } else {
          next.copy_(kept[kind]);
        }
      }
    }
  }

  // ---- the signal

  void emit(BucketExchange& exchange, SignalState& state) const {
    const Memory::Piece& memory = *exchange.memory;
    exchange.values = at::empty({memory.numel}, memory.now[momentum_kind()].options());
    for (size_t i = 0; i < exchange.coded.size(); ++i) {
      memory.at(exchange.values, i).copy_(exchange.gradient(i).flat);
    }
    state.values = exchange.values;
    give_memory(memory, state);
    if (options_.error_feedback && signal_->masks()) {
      const at::Tensor& residual = memory.now[kResidual];
      state.owed = memory.has_copy(kResidual) ? residual : residual.clone();
    }
    signal_->emit(state);
    for (size_t i = 0; i < exchange.idle.size(); ++i) {
      if (exchange.idle[i]) exchange.source(i).zero_();
    }
  }

  /// What the signal works on beside the values.
  void give_memory(const Memory::Piece& memory, SignalState& state) const {
    const size_t kind = momentum_kind();
    state.now = memory.now[kind];
    state.next = memory.next[kind];
    if (signal_->keeps_own()) {
      state.own = memory.now[kind + 1];
      state.own_next = memory.next[kind + 1];
    }
    if (options_.error_feedback) state.left = memory.next[kResidual];
  }

  void receive(BucketExchange& exchange, SignalState& state, bool in_full) const {
    const Memory::Piece& memory = *exchange.memory;
    if (!in_full) {
      signal_->receive(state);
    } else if (follows()) {
      state.values = at::empty({memory.numel}, memory.now[momentum_kind()].options());
      for (size_t i = 0; i < exchange.coded.size(); ++i) {
        memory.at(state.values, i).copy_(exchange.gradient(i).flat);
      }
      give_memory(memory, state);
      if (options_.error_feedback && memory.has_copy(kResidual)) {
        memory.next[kResidual].copy_(memory.now[kResidual]);
      }
      signal_->follow(state);
    }
  }

  /// Gradients that travel whole have the momentum of those that do not.
  void follow_whole(const Bucket& bucket, const std::vector<size_t>& whole, bool in_full) {
    if (!follows() || whole.empty() || bucket.buffer.is_sparse()) return;
    Memory::Piece& memory = whole_momenta_.piece(bucket, whole);
    SignalState state;
    state.now = memory.now[0];
    state.next = memory.next[0];
    state.values = at::empty_like(state.now);
    for (size_t i = 0; i < whole.size(); ++i) {
      memory.at(state.values, i).copy_(bucket.gradients[whole[i]].flat);
    }
    signal_->follow(state);
    for (size_t i = 0; i < whole.size() && !in_full; ++i) {
      bucket.gradients[whole[i]].flat.copy_(memory.next_of(0, i));
    }
  }

  /// Nothing stays behind: residuals leave with what is sent.
  MessageRound in_full_precision(BucketExchange& exchange) {
    Bucket& bucket = exchange.bucket;
    if (options_.error_feedback && !follows()) {
      compressor_->write_down();
      for (size_t i = 0; i < exchange.coded.size(); ++i) {
        at::Tensor next = exchange.memory->next_of(kResidual, i);
        if (!exchange.idle[i]) exchange.source(i).add_(exchange.memory->now_of(kResidual, i));
        next.zero_();
      }
    }
    if (!exchange.values.defined()) return {{HookCollective::sum(bucket.buffer)}, Rest::kNone};
    MessageRound round;
    if (exchange.side_numel() > 0) {
      exchange.pack_side(at::empty({exchange.side_numel()}, bucket.buffer.options()));
      round.collectives.push_back(HookCollective::sum(exchange.side));
    }
    round.collectives.push_back(HookCollective::sum(exchange.values));
    return round;
  }

  /// No rank used the i-th of the coded gradients: what came out is none of its.
  void clear(const BucketExchange& exchange, size_t i) const {
    exchange.source(i).zero_();
    if (options_.error_feedback) exchange.memory->next_of(kResidual, i).zero_();
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
  const std::unique_ptr<Signal> signal_;
  Memory memory_;
  Memory whole_momenta_;  // of what the compressor does not take
  double scale_ = 1;      // of the gradients: AMP's
};

}  // namespace

MakeHook compressing_hook(CompressingOptions options, MakeCompressor make_compressor) {
  return [options = std::move(options), make_compressor = std::move(make_compressor)](
             const HookContext& context) -> std::unique_ptr<Hook> {
    return std::make_unique<CompressingHook>(context, options, make_compressor(context, options));
  };
}

}  // namespace q7x2
