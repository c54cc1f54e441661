// Any codec of q7x2, with error feedback: int8, int4, one bit, top-k.
//
// The gradients of a bucket go through the compressed all-reduce as one tensor: encoded once by
// each rank, added by the owner of each part, encoded once more. What both roundings lose stays in
// the residual and is added to the next gradient:
//
//   x = residual + gradient / ranks;  (sum, lost) = coded_all_reduce(x);  residual = lost
//
// Residuals and results together are exactly the sum of what went in, on whichever rank they lie.
// Without error feedback the result is biased unless the codec rounds at random (":sr").
//
// In the gradient's place a momentum may go through the codec (coded.h has which), and gradients
// may have codecs of their own, chosen now and then by what each would lose (bit_allocation.h).
//
//   collectives   one for each codec in use, and one for all that travels whole, at the same time
//   bytes         of the codecs
//   memory        two fp32 copies of the coded parameters, four with a momentum
// Seide et al., "1-bit stochastic gradient descent", 2014; Karimireddy et al., "Error feedback
// fixes SignSGD and other gradient compression schemes", 2019.
#include "comm_hooks/coded.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "backend/process_group.h"
#include "comm_hooks/bit_allocation.h"
#include "comm_hooks/idle.h"
#include "comm_hooks/kept_tensors.h"
#include "comm_hooks/stock_all_reduce.h"
#include "kernels/codec.h"
#include "kernels/random.h"

namespace q7x2 {
namespace {

constexpr const char* kChoice = "choice";
constexpr const char* kPeriod = "choice_period";
constexpr const char* kScale = "scale";

/// Gradients of one bucket that go through one codec.
struct Part {
  std::shared_ptr<const Codec> codec;
  std::vector<size_t> positions;  ///< in the bucket's gradients
  int64_t offset = 0;             ///< in the kept tensors
  at::Tensor message;             ///< one dimension
};

class CodedHook final : public Hook {
 public:
  CodedHook(const HookContext& context, CodedHookOptions options)
      : Hook(context),
        options_(std::move(options)),
        kept_(context, kinds(options_), [this](size_t number) { return !is_whole(number); }) {
    for (const auto& stage : options_.stages) stages_.push_back(checked(stage.codec));
    if (!options_.choices.empty()) choices_.push_back(stages_.front());
    for (const std::string& choice : options_.choices) choices_.push_back(checked(choice));
  }

  size_t lanes() const override { return options_.over_stock ? StockAllReduce::kLanes : 1; }

  Phases reduce(Bucket& bucket) override {
    const bool in_full = options_.full_precision.at(bucket.step);
    bucket.buffer.mul_(1.0 / context_.world_size);
    clip(bucket);
    if ((in_full && !kept_.any() && !has_momentum()) || bucket.buffer.is_sparse() ||
        bucket.gradients.empty()) {
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      if (!all_finite(bucket.buffer)) bucket.overflowed();
      co_return;
    }
    std::vector<Part> parts;
    std::vector<size_t> whole;
    KeptTensors::Piece& kept = divide(bucket, in_full, parts, whole);
    if (in_full && options_.momentum == Momentum::kGlobal) {
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      if (!all_finite(bucket.buffer)) bucket.overflowed();
      follow(bucket, parts, kept);
      co_return;
    }

    const bool counts_uses = !in_full && std::ranges::any_of(parts, [](const Part& part) {
      return !part.codec->traits().keeps_zeros;
    });
    std::vector<bool> idle;
    at::Tensor whole_message;  // and behind the gradients who uses the others
    at::Tensor errors;         // [gradient, choice], squared
    {
      const PhaseTimer timer = bucket.time("pack");
      idle = pack(bucket, parts, kept, in_full);
      whole_message = cat(bucket, whole);
      if (counts_uses) {
        const at::Tensor uses = uses_of(idle, bucket.buffer.options());
        whole_message = whole_message.defined() ? at::cat({whole_message, uses}) : uses;
      }
      if (!in_full && !parts.empty() && chooses_at(bucket.step)) errors = measure(parts, kept);
    }
    std::vector<HookCollective> first;
    if (whole_message.defined()) first.push_back(HookCollective::sum(whole_message));
    if (errors.defined()) first.push_back(HookCollective::sum(errors));
    std::vector<std::unique_ptr<StockAllReduce>> over_stock;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (in_full) {
        first.push_back(HookCollective::sum(parts[i].message));
      } else if (!options_.over_stock) {
        first.push_back(coded_sum(bucket, parts[i], kept, i));
      } else {
        const PhaseTimer timer = bucket.time("encode");
        over_stock.push_back(stock_sum(bucket, parts[i], kept, i));
      }
    }
    if (over_stock.empty()) {
      co_await bucket.all(std::move(first), Rest::kNone);
    } else {
      for (auto& one : over_stock) append(first, one->exchange_lengths());
      co_await bucket.all(std::move(first), Rest::kCollectives);
      std::vector<HookCollective> next;
      for (auto& one : over_stock) next.push_back(one->scatter());
      co_await bucket.all(std::move(next), Rest::kCollectives);
      {
        const PhaseTimer timer = bucket.time("reduce");
        for (auto& one : over_stock) one->reduce();
      }
      next.clear();
      for (auto& one : over_stock) append(next, one->gather_lengths());
      co_await bucket.all(std::move(next), Rest::kCollectives);
      next.clear();
      for (auto& one : over_stock) next.push_back(one->gather());
      co_await bucket.all(std::move(next), Rest::kNone);
      const PhaseTimer timer = bucket.time("decode");
      for (auto& one : over_stock) one->finish();
    }

    const PhaseTimer timer = bucket.time("unpack");
    if (errors.defined()) note_errors(bucket, parts, errors);
    if (counts_uses) {
      const auto count = static_cast<int64_t>(idle.size());
      clear_unused(parts, kept,
                   idle_everywhere(whole_message.narrow(0, whole_message.numel() - count, count)));
    }
    settle(parts, kept, idle, in_full);
    for (const Part& part : parts) unpack(bucket, part.positions, part.message);
    unpack(bucket, whole, whole_message);
    if (!all_finite(bucket.buffer)) bucket.overflowed();
  }

  void end_step(bool keep) override {
    kept_.end_step(keep);
    if (keep && !errors_.empty()) choose();
    errors_.clear();
  }

  void rescale(double factor) override {
    kept_.rescale(factor);
    scale_ *= factor;
  }

  void save(HookState& shared, HookState& local) const override {
    kept_.save(shared, local);
    shared[kScale]["value"] = at::scalar_tensor(scale_, at::kDouble);
    if (choices_.empty()) return;
    shared[kPeriod]["last"] = at::scalar_tensor(chosen_in_, at::kLong);
    for (size_t number = 0; number < context_.parameters.size(); ++number) {
      if (is_whole(number)) continue;
      const int64_t choice =
          number < chosen_.size() && chosen_[number] ? static_cast<int64_t>(*chosen_[number]) : -1;
      shared[kChoice][context_.parameters[number].name] = at::scalar_tensor(choice, at::kLong);
    }
  }

  void load(const HookState& shared, const HookState& local) override {
    std::vector<std::optional<size_t>> chosen(context_.parameters.size());
    const auto saved = shared.find(kChoice);
    for (size_t number = 0; saved != shared.end() && number < chosen.size(); ++number) {
      const auto choice = saved->second.find(context_.parameters[number].name);
      if (choice == saved->second.end()) continue;
      const auto value = choice->second.item<int64_t>();
      if (value >= static_cast<int64_t>(choices_.size())) {
        throw Error(ErrorCode::kInvalidArgument,
                    "expected one of " + std::to_string(choices_.size()) + " choices for " +
                        context_.parameters[number].name + ", got " + std::to_string(value));
      }
      if (value >= 0) chosen[number] = static_cast<size_t>(value);
    }
    const auto scale = shared.find(kScale);
    const auto period = shared.find(kPeriod);
    kept_.load(shared, local);
    chosen_in_ = period == shared.end() ? -1 : period->second.at("last").item<int64_t>();
    scale_ = scale == shared.end() ? 1 : scale->second.at("value").item<double>();
    chosen_ = std::move(chosen);
  }

 private:
  // ---- what is kept, and where

  static std::vector<KeptTensors::Kind> kinds(const CodedHookOptions& options) {
    std::vector<KeptTensors::Kind> kinds;
    if (options.error_feedback) kinds.push_back({"residual", false});
    if (options.momentum != Momentum::kNone) {
      kinds.push_back({"momentum", options.momentum == Momentum::kGlobal});
    }
    return kinds;
  }

  bool is_whole(size_t number) const {
    return number < options_.whole.size() && options_.whole[number];
  }
  bool has_momentum() const { return options_.momentum != Momentum::kNone; }
  size_t momentum_kind() const { return options_.error_feedback ? 1 : 0; }

  /// Undefined where none is kept. `which`: `now` or `next` of `kept`.
  at::Tensor residual(const std::vector<at::Tensor>& which, const Part& part) const {
    if (!options_.error_feedback) return {};
    return which[0].narrow(0, part.offset, part.message.numel());
  }
  at::Tensor momentum(const std::vector<at::Tensor>& which, const Part& part) const {
    return which[momentum_kind()].narrow(0, part.offset, part.message.numel());
  }

  // ---- codecs

  std::shared_ptr<const Codec> checked(const std::string& name) const {
    std::shared_ptr<const Codec> codec = Codec::make(name);
    if (options_.error_feedback && !codec->traits().keeps_error) {
      throw Error(ErrorCode::kInvalidArgument,
                  "codec '" + codec->name() + "' cannot keep errors: turn error feedback off");
    }
    if (options_.over_stock && !codec->has_messages()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "codec '" + codec->name() + "' needs a process group of q7x2, expected int8");
    }
    return codec;
  }

  const std::shared_ptr<const Codec>& stage_codec(uint64_t step) const {
    size_t stage = 0;
    while (stage + 1 < stages_.size() && options_.stages[stage + 1].first_step <= step) ++stage;
    return stages_[stage];
  }

  const std::shared_ptr<const Codec>& codec_of(size_t number, uint64_t step) const {
    const bool is_chosen = number < chosen_.size() && chosen_[number];
    return is_chosen ? choices_[*chosen_[number]] : stage_codec(step);
  }

  /// The coded gradients by codec, in full precision all together; the others; and what is kept.
  KeptTensors::Piece& divide(const Bucket& bucket, bool in_full, std::vector<Part>& parts,
                             std::vector<size_t>& whole) {
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      const size_t number = bucket.gradients[i].parameter;
      if (is_whole(number)) {
        whole.push_back(i);
        continue;
      }
      const auto& codec = in_full ? stages_[0] : codec_of(number, bucket.step);
      auto part = std::ranges::find(parts, codec, &Part::codec);
      if (part == parts.end()) part = parts.insert(part, Part{codec, {}, 0, {}});
      part->positions.push_back(i);
    }
    std::vector<size_t> order;
    for (Part& part : parts) {
      order.insert(order.end(), part.positions.begin(), part.positions.end());
    }
    KeptTensors::Piece& kept = kept_.piece(bucket, order);
    size_t first = 0;
    for (Part& part : parts) {
      part.offset = kept.places[first].first;
      first += part.positions.size();
    }
    return kept;
  }

  // ---- into messages

  void clip(const Bucket& bucket) const {
    if (options_.clip_norm == 0) return;
    const PhaseTimer timer = bucket.time("clip");
    const double limit = scale_ * options_.clip_norm / context_.world_size;
    for (const Gradient& gradient : bucket.gradients) {
      if (is_whole(gradient.parameter)) continue;
      const auto type = gradient.flat.scalar_type();
      const auto norm =
          gradient.flat.norm(2, type == at::kDouble ? type : at::kFloat).item<double>();
      if (norm > limit) gradient.flat.mul_(limit / norm);
    }
  }

  /// Returns which gradients are idle, by position among the coded.
  std::vector<bool> pack(const Bucket& bucket, std::vector<Part>& parts, KeptTensors::Piece& kept,
                         bool in_full) const {
    // Where everything goes through one codec the bucket itself does.
    const bool in_place = parts.size() == 1 &&
                          parts[0].positions.size() == bucket.gradients.size() && !has_momentum();
    std::vector<bool> idle;
    for (Part& part : parts) {
      part.message = in_place ? bucket.buffer : cat(bucket, part.positions);
      if (has_momentum()) {
        part.message = part.message.to(at::kFloat);
        at::Tensor next = momentum(kept.next, part);
        at::mul_out(next, momentum(kept.now, part),
                    at::scalar_tensor(old_share(), next.scalar_type()));
        next.add_(part.message, new_share());
        part.message.copy_(next);
      }
      if (options_.error_feedback) residual(kept.next, part).copy_(residual(kept.now, part));
      int64_t offset = 0;
      for (const size_t i : part.positions) {
        const at::Tensor& flat = bucket.gradients[i].flat;
        idle.push_back(all_zero(flat) && options_.momentum != Momentum::kGlobal);
        if (idle.back()) {
          if (options_.error_feedback) {
            residual(kept.next, part).narrow(0, offset, flat.numel()).zero_();
          }
          part.message.narrow(0, offset, flat.numel()).zero_();
        }
        offset += flat.numel();
      }
      if (in_full && options_.error_feedback) {  // nothing stays behind
        part.message.add_(residual(kept.next, part));
        residual(kept.next, part).zero_();
      }
    }
    return idle;
  }

  /// Of the gradient in the momentum.
  double new_share() const {
    return options_.momentum == Momentum::kAccumulated ? 1 : 1 - options_.momentum_factor;
  }
  /// Of the last momentum in this rank's contribution. All ranks have the same global one.
  double old_share() const {
    const bool is_mean = options_.momentum == Momentum::kGlobal;
    return options_.momentum_factor / (is_mean ? context_.world_size : 1);
  }

  static at::Tensor cat(const Bucket& bucket, const std::vector<size_t>& positions) {
    std::vector<at::Tensor> flats;
    for (const size_t i : positions) flats.push_back(bucket.gradients[i].flat);
    return flats.empty() ? at::Tensor() : at::cat(flats);
  }

  static void append(std::vector<HookCollective>& to, std::vector<HookCollective> from) {
    std::ranges::move(from, std::back_inserter(to));
  }

  // ---- the sums

  uint64_t seed_of(const Bucket& bucket, size_t part) const {
    return mix_keys(options_.seed + bucket.index, part);
  }

  HookCollective coded_sum(const Bucket& bucket, const Part& part, const KeptTensors::Piece& kept,
                           size_t index) const {
    ProcessGroupQ7x2::CodedOptions how;
    how.codec = part.codec->name();
    how.edges = options_.edges;
    if (options_.error_feedback) how.errors = {residual(kept.next, part)};
    how.seed = seed_of(bucket, index);
    how.step = bucket.step;
    const auto start = [tensor = part.message, how](c10d::ProcessGroup& group) {
      const auto backend = group.getBackend(tensor.device().type());
      auto* const ours = dynamic_cast<ProcessGroupQ7x2*>(backend.get());
      if (ours == nullptr) {
        throw Error(ErrorCode::kInvalidArgument, "codecs need a process group of q7x2");
      }
      std::vector<at::Tensor> tensors{tensor};
      return ours->coded_all_reduce(tensors, how);
    };
    return {start, static_cast<size_t>(part.codec->sum_bits(1) / 8 *
                                       static_cast<double>(part.message.numel()))};
  }

  std::unique_ptr<StockAllReduce> stock_sum(const Bucket& bucket, const Part& part,
                                            const KeptTensors::Piece& kept, size_t index) const {
    const uint64_t shared = mix_keys(seed_of(bucket, index), bucket.step);
    const CodecKeys keys{shared, mix_keys(shared, static_cast<uint64_t>(context_.rank))};
    return std::make_unique<StockAllReduce>(part.codec, keys, part.message,
                                            residual(kept.next, part), context_.rank,
                                            context_.world_size);
  }

  // ---- back

  /// What came out for `unused` gradients, by position among the coded, is none of theirs.
  void clear_unused(std::vector<Part>& parts, const KeptTensors::Piece& kept,
                    const std::vector<bool>& unused) const {
    size_t position = 0;
    for (Part& part : parts) {
      for (size_t i = 0; i < part.positions.size(); ++i, ++position) {
        if (!unused[position]) continue;
        const auto& [first, length] = kept.places[position];
        part.message.narrow(0, first - part.offset, length).zero_();
        if (options_.error_feedback) kept.next[0].narrow(0, first, length).zero_();
      }
    }
  }

  /// The sums are there: brings what is kept to rest.
  void settle(std::vector<Part>& parts, const KeptTensors::Piece& kept,
              const std::vector<bool>& idle, bool in_full) const {
    size_t position = 0;
    for (Part& part : parts) {
      if (part.codec->spec().value.kind == ValueKind::kSign && !in_full) part.message.mul_(scale_);
      if (options_.momentum == Momentum::kGlobal) momentum(kept.next, part).copy_(part.message);
      if (options_.momentum == Momentum::kAccumulated && options_.error_feedback && !in_full) {
        // What was sent is in the sum, and most of it has left its residual; the rest waits, but
        // for what the owner's rounding of a sum adds. Where ranks of a host add up before they
        // encode, residuals leave anyway: the sum decides.
        const at::Tensor all = residual(kept.now, part) + momentum(kept.next, part);
        const at::Tensor sent = (residual(kept.next, part) - all).abs_() > all.abs().mul_(0.5);
        momentum(kept.next, part).masked_fill_(sent.logical_and(part.message != 0), 0);
      }
      for (size_t i = 0; i < part.positions.size(); ++i, ++position) {
        if (!idle[position]) continue;
        const auto& [first, length] = kept.places[position];
        if (options_.error_feedback) {
          kept.next[0].narrow(0, first, length).add_(kept.now[0].narrow(0, first, length));
        }
        if (has_momentum()) {
          const size_t kind = momentum_kind();
          kept.next[kind].narrow(0, first, length).copy_(kept.now[kind].narrow(0, first, length));
        }
      }
    }
  }

  /// Momentum::kGlobal in full precision: m becomes that of the mean gradients.
  void follow(const Bucket& bucket, std::vector<Part>& parts,
              const KeptTensors::Piece& kept) const {
    const PhaseTimer timer = bucket.time("unpack");
    for (Part& part : parts) {
      part.message = cat(bucket, part.positions).to(at::kFloat);
      at::Tensor next = momentum(kept.next, part);
      next.copy_(momentum(kept.now, part));
      next.mul_(options_.momentum_factor).add_(part.message, new_share());
      if (options_.error_feedback) residual(kept.next, part).copy_(residual(kept.now, part));
    }
  }

  static void unpack(const Bucket& bucket, const std::vector<size_t>& positions,
                     const at::Tensor& packed) {
    int64_t offset = 0;
    for (const size_t i : positions) {
      const at::Tensor& flat = bucket.gradients[i].flat;
      if (packed.is_same(bucket.buffer)) return;
      flat.copy_(packed.narrow(0, offset, flat.numel()));
      offset += flat.numel();
    }
  }

  // ---- a codec for each gradient

  /// Of the compressed steps, which are divided into periods of `choose_every`.
  int64_t period_of(uint64_t step) const {
    return static_cast<int64_t>((step - options_.full_precision.start) / options_.choose_every);
  }
  /// Once a period, in its first step that is compressed and kept.
  bool chooses_at(uint64_t step) const {
    return !choices_.empty() && step >= options_.full_precision.start &&
           period_of(step) != chosen_in_;
  }

  /// The squared norm of each gradient, and what each choice would lose of it, squared:
  /// [gradient, 1 + choices], in fp32.
  at::Tensor measure(const std::vector<Part>& parts, const KeptTensors::Piece& kept) const {
    std::vector<float> errors;
    size_t position = 0;
    for (const Part& part : parts) {
      at::Tensor values = part.message.to(at::kFloat);
      if (options_.error_feedback) values = values + residual(kept.next, part);
      values = values.cpu();
      for (size_t i = 0; i < part.positions.size(); ++i, ++position) {
        const auto& [first, length] = kept.places[position];
        const float* const begin = values.const_data_ptr<float>() + (first - part.offset);
        errors.push_back(std::transform_reduce(
            begin, begin + length, 0.0F, std::plus<>(), [](float value) { return value * value; }));
        for (const auto& choice : choices_) {
          errors.push_back(
              static_cast<float>(choice->squared_error(begin, static_cast<size_t>(length))));
        }
      }
    }
    const auto choices = static_cast<int64_t>(choices_.size());
    return at::tensor(errors).view({-1, 1 + choices}).to(parts[0].message.device());
  }

  void note_errors(const Bucket& bucket, const std::vector<Part>& parts, const at::Tensor& errors) {
    choosing_in_ = period_of(bucket.step);
    const at::Tensor sums = errors.cpu();
    const float* row = sums.const_data_ptr<float>();
    for (const Part& part : parts) {
      for (const size_t i : part.positions) {
        errors_[bucket.gradients[i].parameter] = {row, row + 1 + choices_.size()};
        row += 1 + choices_.size();
      }
    }
  }

  /// All ranks have the same sums of errors, so they choose the same.
  void choose() {
    std::vector<GradientCosts> costs;
    for (const auto& [number, errors] : errors_) {
      const auto numel =
          static_cast<double>(c10::multiply_integers(context_.parameters[number].shape));
      GradientCosts& gradient = costs.emplace_back();
      gradient.norm = errors[0];
      for (size_t i = 0; i < choices_.size(); ++i) {
        gradient.choices.push_back({choices_[i]->traits().bits / 8 * numel, errors[1 + i]});
      }
    }
    const auto choices = choose_codecs(costs);
    chosen_in_ = choosing_in_;
    chosen_.resize(context_.parameters.size());
    auto choice = choices.begin();
    for (const auto& [number, errors] : errors_) {
      if (*choice) chosen_[number] = *choice;
      ++choice;
    }
  }

  const CodedHookOptions options_;
  std::vector<std::shared_ptr<const Codec>> stages_;
  std::vector<std::shared_ptr<const Codec>> choices_;  // the first: the stage's
  KeptTensors kept_;
  double scale_ = 1;                             // of the gradients: AMP's
  std::map<size_t, std::vector<float>> errors_;  // of this step, by number: rows of `measure`
  std::vector<std::optional<size_t>> chosen_;    // by number
  int64_t chosen_in_ = -1;                       // the last period with a choice
  int64_t choosing_in_ = -1;                     // that of errors_
};

}  // namespace

std::unique_ptr<Hook> make_coded(const HookContext& context, CodedHookOptions options) {
  return std::make_unique<CodedHook>(context, std::move(options));
}

}  // namespace q7x2
