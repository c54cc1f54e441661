// Any codec of q7x2, with error feedback: int8, int4, one bit, top-k.
//
// The gradients of a bucket go through the compressed all-reduce as one tensor: encoded once by
// each rank, added by the owner of each part, and encoded once more. The residual stores the errors
// of both roundings, and is added to the next gradient:
//
//   x = residual + gradient / ranks;  (sum, lost) = coded_all_reduce(x);  residual = lost
//
// Residuals and results of all ranks together are exactly the sum of the inputs. Without error
// feedback the result is biased unless the codec rounds at random (":sr").
//
// Selections, and groups of elements that share a scale, never extend over two parameters. So a
// parameter has its own message if the codec selects from it. Others share a message, with padding
// between them (group_padding.h).
//
//   collectives   one per codec in use, one per parameter that is selected from, and one for all
//                 gradients that are sent whole; all at the same time
//   bytes         those of the codecs; a gradient whose code would be no shorter is sent whole
//   memory        one fp32 copy of the coded parameters, two if steps may be skipped
// Seide et al., "1-bit stochastic gradient descent", 2014; Karimireddy et al., "Error feedback
// fixes SignSGD and other gradient compression schemes", 2019.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "comm_hooks/compress/coded_sum.h"
#include "comm_hooks/compress/compressors.h"
#include "comm_hooks/compress/group_padding.h"
#include "comm_hooks/compress/held_state.h"
#include "comm_hooks/compress/stock_all_reduce.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/random.h"
#include "plan/ir/edge_coding.h"

namespace q7x2 {
namespace {

using CodecPtr = std::shared_ptr<const Codec>;

struct CodecOptions {
  std::vector<std::pair<uint64_t, std::string>> stages;
  bool per_parameter = true;
  bool over_stock = false;
  std::string edges = to_string(EdgeWish::kAuto);
  uint64_t random_seed = 0;
};

OptionFields<CodecOptions> codec_fields() {
  return OptionFields<CodecOptions>()
      .add("stages", &CodecOptions::stages,
           "The codecs (docs/codecs.md), each with the step from which it holds; the first from "
           "step 0.")
      .add("per_parameter", &CodecOptions::per_parameter,
           "Groups of elements that share a scale, and selections, lie within one parameter each: "
           "a layer of small gradients does not suffer from one of large gradients.")
      .add("over_stock", &CodecOptions::over_stock,
           "The collectives of every process group are used instead of q7x2's own.")
      .add("edges", &CodecOptions::edges,
           "Between which ranks messages are compressed, if q7x2's own collectives are used.")
      .add("random_seed", &CodecOptions::random_seed,
           "The seed of codecs that round or sample at random.");
}

/// Consecutive gradients of the exchange that go through one codec.
struct Part {
  CodecPtr codec;
  bool is_shared = false;  ///< several gradients may share its message
  bool is_padded = false;  ///< has elements that belong to no gradient
  size_t first = 0;
  size_t count = 0;
  int64_t offset = 0;   ///< in the memory
  at::Tensor message;   ///< one dimension
  at::Tensor residual;  ///< as many elements; undefined without error feedback
};

class CodecCompressor final : public Compressor {
 public:
  /// Throws Error(kInvalidArgument) for a codec that does not exist, that cannot keep errors (with
  /// error feedback) or cannot be used over stock collectives, and for edges that do not exist.
  CodecCompressor(const HookContext& context, const CompressingOptions& compressing,
                  CodecOptions options)
      : Compressor(context, compressing),
        options_(std::move(options)),
        edges_(parse_edge_wish(options_.edges)),
        stages_(all_stages()) {}

  size_t lanes() const override { return options_.over_stock ? StockAllReduce::kLanes : 1; }

  int64_t room(const Bucket& bucket, size_t i) const override {
    const int64_t numel = bucket.gradients[i].flat.numel();
    const CodecPtr codec = codec_of(bucket.gradients[i].parameter, bucket.step);
    if (!options_.per_parameter || !shares_message(*codec)) return numel;
    return padded_numel(codec->spec().value, numel);
  }

  /// Makes gradients with the same codec neighbours if they may share a message.
  void arrange(const Bucket& bucket, std::vector<size_t>& coded) const override {
    std::vector<std::pair<std::pair<const Codec*, bool>, std::vector<size_t>>> by_message;
    for (const size_t i : coded) {
      const CodecPtr codec = codec_of(bucket.gradients[i].parameter, bucket.step);
      const std::pair key{codec.get(), shares_message(*codec)};
      auto found = std::ranges::find_if(by_message, [&](auto& one) { return one.first == key; });
      if (found == by_message.end()) found = by_message.insert(found, {key, {}});
      found->second.push_back(i);
    }
    coded.clear();
    for (const auto& [key, positions] : by_message) {
      coded.insert(coded.end(), positions.begin(), positions.end());
    }
  }

  std::unique_ptr<Encoding> begin(BucketExchange& exchange) override;

  /// `level`: the name of a codec.
  void check(size_t, const std::string& level) const override { decided(level); }

 protected:
  /// Not if the code, which takes whole groups, would be no shorter than the gradient. Signs are no
  /// gradients: all must be sent.
  bool can_take(size_t number) const override {
    const Codec& codec = *stages_.front();
    if (!options_.per_parameter || !codec.traits().fixed_size ||
        codec.spec().select != SelectKind::kAll || codec.spec().value.kind == ValueKind::kSign) {
      return true;
    }
    const HookContext::Parameter& parameter = context_.parameters[number];
    const int64_t numel = c10::multiply_integers(parameter.shape);
    const auto padded = static_cast<size_t>(padded_numel(codec.spec().value, numel));
    const size_t code = codec.max_bytes(padded) - codec.max_bytes(0);
    return code < static_cast<size_t>(numel) * c10::elementSize(parameter.dtype);
  }

 private:
  friend class CodecEncoding;

  /// Whether gradients may share a message: not if the codec's selection would extend over several.
  bool shares_message(const Codec& codec) const {
    return !options_.per_parameter || codec.spec().select == SelectKind::kAll;
  }

  std::vector<CodecPtr> all_stages() const {
    std::vector<CodecPtr> stages;
    for (const auto& [first_step, codec] : options_.stages) stages.push_back(checked(codec));
    return stages;
  }

  CodecPtr checked(const std::string& name) const {
    std::shared_ptr<const Codec> codec = Codec::make(name);
    if (compressing_.error_feedback && !codec->traits().keeps_error) {
      throw Error(ErrorCode::kInvalidArgument,
                  "codec '" + codec->name() + "' cannot keep errors: turn error feedback off");
    }
    if (options_.over_stock && !codec->has_messages()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "codec '" + codec->name() + "' needs a process group of q7x2, expected int8");
    }
    return codec;
  }

  /// The codec of this name, which a policy has chosen.
  CodecPtr decided(const std::string& name) const {
    auto found = decided_.find(name);
    if (found == decided_.end()) found = decided_.emplace(name, checked(name)).first;
    return found->second;
  }

  CodecPtr codec_of(size_t number, uint64_t step) const {
    const std::string& level = context_.decision.of(number).compressor;
    if (!level.empty()) return decided(level);
    size_t stage = 0;
    while (stage + 1 < stages_.size() && options_.stages[stage + 1].first <= step) ++stage;
    return stages_[stage];
  }

  const CodecOptions options_;
  const EdgeWish edges_;
  const std::vector<CodecPtr> stages_;
  mutable std::map<std::string, CodecPtr> decided_;  // by name
};

class CodecEncoding final : public Encoding {
 public:
  CodecEncoding(CodecCompressor& compressor, BucketExchange& exchange)
      : compressor_(compressor), exchange_(exchange) {
    for (size_t i = 0; i < exchange.coded.size(); ++i) {
      CodecPtr codec = compressor.codec_of(exchange.gradient(i).parameter, exchange.bucket.step);
      // The owner of a part keeps the error of rounding its sum, so it must send this error even if
      // it has no gradient itself.
      exchange.counts_uses |= exchange.has_residual || !codec->traits().keeps_zeros;
      const bool shares = compressor.shares_message(*codec);
      if (parts_.empty() || parts_.back().codec != codec || !shares || !parts_.back().is_shared) {
        parts_.push_back(
            {std::move(codec), shares, false, i, 0, exchange.memory->places[i].first, {}, {}});
      }
      Part& part = parts_.back();
      ++part.count;
      // After the last gradient of a part, nothing must begin with a new group.
      part.is_padded |= part.count > 1 && end_of(i - 1) < exchange.memory->places[i].first;
    }
  }

  MessageRound encode() override {
    const Bucket& bucket = exchange_.bucket;
    MessageRound round;
    {
      const PhaseTimer timer = bucket.time("pack");
      for (Part& part : parts_) pack(part);
      if (exchange_.side_numel() > 0) {
        exchange_.pack_side(exchange_.new_side());
        round.collectives.push_back(HookCollective::sum(exchange_.side));
      }
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (!compressor_.options_.over_stock) {
        round.collectives.push_back(sum_of(parts_[i], i));
        continue;
      }
      const PhaseTimer timer = bucket.time("encode");
      over_stock_.push_back(stock_sum(parts_[i], i));
      append(round.collectives, over_stock_.back()->exchange_lengths());
    }
    round.rest = over_stock_.empty() ? Rest::kNone : Rest::kCollectives;
    return round;
  }

  /// Over stock collectives: lengths, messages to their owners, lengths, sums to all ranks.
  MessageRound fold() override {
    MessageRound round;
    ++folds_;
    round.rest = folds_ < StockAllReduce::kLanes - 1 ? Rest::kCollectives : Rest::kNone;
    const PhaseTimer timer = exchange_.bucket.time("reduce");
    for (auto& one : over_stock_) {
      if (folds_ == 1) {
        round.collectives.push_back(one->scatter());
      } else if (folds_ == 2) {
        one->reduce();
        append(round.collectives, one->gather_lengths());
      } else {
        round.collectives.push_back(one->gather());
      }
    }
    return round;
  }

  void decode() override {
    const PhaseTimer timer = exchange_.bucket.time("decode");
    for (auto& one : over_stock_) one->finish();
    for (const Part& part : parts_) {
      at::Tensor message = part.message;
      if (part.codec->spec().value.kind == ValueKind::kSign) message.mul_(exchange_.scale);
      if (part.is_padded && !part.codec->traits().keeps_zeros) clear_padding(part);
      if (exchange_.values.defined() || message.is_same(exchange_.bucket.buffer)) continue;
      for (size_t i = part.first; i < part.first + part.count; ++i) {
        exchange_.gradient(i).flat.copy_(in(message, part, i));
      }
    }
  }

 private:
  at::Tensor in(const at::Tensor& packed, const Part& part, size_t i) const {
    const auto& [first, length] = exchange_.memory->places[i];
    return packed.narrow(0, first - part.offset, length);
  }

  void pack(Part& part) const {
    const ErrorFeedback::Piece& memory = *exchange_.memory;
    const int64_t numel = end_of(part.first + part.count - 1) - part.offset;
    if (exchange_.values.defined()) {
      part.message = exchange_.values.narrow(0, part.offset, numel);
    } else if (part.count == exchange_.bucket.gradients.size() &&
               numel == exchange_.bucket.buffer.numel()) {
      part.message = exchange_.bucket.buffer;  // one codec for the whole bucket
    } else {
      part.message = at::empty({numel}, exchange_.bucket.buffer.options());
      for (size_t i = part.first; i < part.first + part.count; ++i) {
        in(part.message, part, i).copy_(exchange_.gradient(i).flat);
      }
    }
    if (exchange_.has_residual) {
      part.residual = memory.next[kResidual].narrow(0, part.offset, numel);
      if (memory.has_copy(kResidual)) {
        part.residual.copy_(memory.now[kResidual].narrow(0, part.offset, numel));
      }
    }
    for (size_t i = part.first; i < part.first + part.count; ++i) {
      if (exchange_.idle[i]) in(part.message, part, i).zero_();
    }
    if (part.is_padded) pad(part);
  }

  // ---- padding

  /// The end of the i-th gradient in the memory, without padding.
  int64_t end_of(size_t i) const {
    const auto& [first, length] = exchange_.memory->places[i];
    return first + length;
  }

  /// Calls `visit` with the elements of each gradient and its padding, if it has padding.
  template <class Visit>
  void for_each_room(const at::Tensor& packed, const Part& part, Visit visit) const {
    for (size_t i = part.first; i + 1 < part.first + part.count; ++i) {
      const auto& [first, length] = exchange_.memory->places[i];
      const int64_t room = exchange_.memory->places[i + 1].first - first;
      if (room > length) visit(packed.narrow(0, first - part.offset, room), length);
    }
  }

  void pad(const Part& part) const {
    const ValueSpec& value = part.codec->spec().value;
    const auto fill = [&](const at::Tensor& room, int64_t numel) {
      fill_padding(value, room, numel);
    };
    const bool repeats = repeats_padding(value);
    if (repeats || !exchange_.values.defined()) for_each_room(part.message, part, fill);
    if (repeats && part.residual.defined()) for_each_room(part.residual, part, fill);
  }

  /// Sets the padding of results and residuals to zero.
  void clear_padding(const Part& part) const {
    const auto clear = [](const at::Tensor& room, int64_t numel) {
      room.narrow(0, numel, room.numel() - numel).zero_();
    };
    if (exchange_.values.defined()) for_each_room(part.message, part, clear);
    if (part.residual.defined()) for_each_room(part.residual, part, clear);
  }

  // ---- the sums

  uint64_t seed_of(size_t part) const {
    return mix_keys(compressor_.options_.random_seed + exchange_.bucket.index, part);
  }

  HookCollective sum_of(const Part& part, size_t index) const {
    CodedOptions how;
    how.edges = compressor_.edges_;
    if (part.residual.defined()) how.errors = {part.residual};
    how.seed = seed_of(index);
    how.step = exchange_.bucket.step;
    return coded_sum(*part.codec, part.message, std::move(how));
  }

  std::unique_ptr<StockAllReduce> stock_sum(const Part& part, size_t index) const {
    const HookContext& context = compressor_.context_;
    const uint64_t shared = mix_keys(seed_of(index), exchange_.bucket.step);
    const CodecKeys keys{shared, mix_keys(shared, static_cast<uint64_t>(context.rank))};
    return std::make_unique<StockAllReduce>(part.codec, keys, part.message, part.residual,
                                            context.rank, context.world_size);
  }

  static void append(std::vector<HookCollective>& to, std::vector<HookCollective> from) {
    std::ranges::move(from, std::back_inserter(to));
  }

  CodecCompressor& compressor_;
  BucketExchange& exchange_;
  std::vector<Part> parts_;
  std::vector<std::unique_ptr<StockAllReduce>> over_stock_;
  size_t folds_ = 0;
};

std::unique_ptr<Encoding> CodecCompressor::begin(BucketExchange& exchange) {
  return std::make_unique<CodecEncoding>(*this, exchange);
}

}  // namespace

CompressorKind codec_compressor() {
  return describe_compressor("codec", "Any codec: quantised, the largest elements, one bit.",
                             StockAllReduce::kLanes, codec_fields(),
                             [](const HookContext& context, const CompressingOptions& compressing,
                                const CodecOptions& options) {
                               return std::make_unique<CodecCompressor>(context, compressing,
                                                                        options);
                             });
}

}  // namespace q7x2
