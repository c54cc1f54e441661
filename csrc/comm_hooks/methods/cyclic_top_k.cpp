// ScaleCom: all ranks send the elements that are largest on one rank. The ranks take turns.
//
// If each rank has its own top-k, the ranks select different elements, and their sum has up to n
// times as many. Here one rank, the leader, selects for all:
//
//   x = residual + gradient / ranks
//   leader:      S = indices of the k largest |x| of each parameter     broadcast
//   every rank:  x[S]                                                   all-reduce
//   results: the sum in S, 0 elsewhere;   residual = x without S
//
// In the next step the next rank is the leader. The residuals of different ranks are similar,
// because they contain what has not been sent for long, so the leader's indices are good for all.
//
//   collectives   a broadcast and an all-reduce, on any process group; whole gradients are sent
//                 with the broadcast
//   bytes         4 k of indices and 4 k of values, for any number of ranks; both kinds of
//                 collectives add up on the way, as for gradients
//   compute       one selection, on one rank; no codec, so all of it runs on the device
//   memory        one fp32 copy of the compressed parameters, two if steps may be skipped
//
// It is better than the top-k codec if many ranks would make the sum dense, and on devices with
// process groups of others, for which codecs run on the CPU.
// Chen, Ni, et al., "ScaleCom: scalable sparsified gradient compression for communication-efficient
// distributed training", 2020.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "comm_hooks/compress/compressors.h"
#include "comm_hooks/compress/held_state.h"

namespace q7x2 {
namespace {

struct CyclicTopKOptions {
  double ratio = 0.01;
};

OptionFields<CyclicTopKOptions> cyclic_top_k_fields() {
  return OptionFields<CyclicTopKOptions>().add(
      "ratio", &CyclicTopKOptions::ratio,
      "The share of the elements of each parameter that are sent, but at least one element.",
      {.above = 0, .most = 1});
}

class CyclicTopK final : public Compressor {
 public:
  CyclicTopK(const HookContext& context, const CompressingOptions& compressing,
             CyclicTopKOptions options)
      : Compressor(context, compressing), options_(options) {}

  size_t lanes() const override { return 2; }
  bool multiplies() const override { return true; }
  std::unique_ptr<Encoding> begin(BucketExchange& exchange) override;

 private:
  friend class CyclicTopKEncoding;

  int64_t count_of(int64_t numel) const {
    const auto count = static_cast<int64_t>(std::ceil(options_.ratio * static_cast<double>(numel)));
    return std::clamp<int64_t>(count, 1, numel);
  }

  const CyclicTopKOptions options_;
};

class CyclicTopKEncoding final : public Encoding {
 public:
  CyclicTopKEncoding(CyclicTopK& compressor, BucketExchange& exchange)
      : compressor_(compressor), exchange_(exchange) {
    // A leader without a gradient selects from its residual.
    exchange.counts_uses = exchange.has_residual;
  }

  MessageRound encode() override {
    const PhaseTimer timer = exchange_.bucket.time("encode");
    load();
    MessageRound round;
    if (exchange_.side_numel() > 0) {
      exchange_.pack_side(exchange_.new_side());
      round.collectives.push_back(HookCollective::sum(exchange_.side));
    }
    const HookContext& context = compressor_.context_;
    const auto leader =
        static_cast<int>(exchange_.bucket.step % static_cast<uint64_t>(context.world_size));
    places_ =
        leader == context.rank ? select() : at::empty({count()}, x_.options().dtype(at::kInt));
    round.collectives.push_back({[places = places_, leader](c10d::ProcessGroup& group) {
                                   std::vector<at::Tensor> tensors{places};
                                   c10d::BroadcastOptions options;
                                   options.rootRank = leader;
                                   return group.broadcast(tensors, options);
                                 },
                                 leader == context.rank ? places_.nbytes() : 0});
    round.rest = Rest::kCollectives;
    return round;
  }

  /// The values, followed by NaN if this rank has Inf or NaN anywhere, otherwise 0.
  MessageRound fold() override {
    const PhaseTimer timer = exchange_.bucket.time("gather");
    places_ = places_.to(at::kLong);
    const at::Tensor probe = x_.mul(0).sum().view({1});
    values_ = at::cat({x_.index_select(0, places_), probe});
    return {{HookCollective::sum(values_)}, Rest::kNone};
  }

  void decode() override {
    const PhaseTimer timer = exchange_.bucket.time("decode");
    const ErrorFeedback::Piece& memory = *exchange_.memory;
    if (exchange_.has_residual) {
      x_.index_fill_(0, places_, 0);
      at::Tensor next = memory.next[kResidual];
      next.copy_(x_);
    }
    const int64_t selected = values_.numel() - 1;
    const at::Tensor mean = values_.narrow(0, selected, 1).expand({memory.numel}).clone();
    mean.index_copy_(0, places_, values_.narrow(0, 0, selected));
    for (size_t i = 0; i < exchange_.coded.size(); ++i) {
      exchange_.source(i).copy_(memory.at(mean, i));
    }
  }

 private:
  /// Computes this rank's contribution to the mean, with its residual.
  void load() {
    const ErrorFeedback::Piece& memory = *exchange_.memory;
    x_ = at::empty({memory.numel}, exchange_.bucket.buffer.options().dtype(at::kFloat));
    for (size_t i = 0; i < exchange_.coded.size(); ++i) {
      at::Tensor target = memory.at(x_, i);
      target.copy_(exchange_.source(i));
      if (exchange_.share != 1) target.mul_(exchange_.share);
      if (exchange_.has_residual) target.add_(memory.now_of(kResidual, i));
    }
  }

  int64_t count() const {
    int64_t count = 0;
    for (const auto& [first, length] : exchange_.memory->places) {
      count += compressor_.count_of(length);
    }
    return count;
  }

  /// The indices of the largest elements of each parameter.
  at::Tensor select() const {
    const at::Tensor magnitudes = x_.abs();
    std::vector<at::Tensor> parts;
    for (const auto& [first, length] : exchange_.memory->places) {
      const at::Tensor part = magnitudes.narrow(0, first, length);
      const at::Tensor found = std::get<1>(
          part.topk(compressor_.count_of(length), 0, /*largest=*/true, /*sorted=*/false));
      parts.push_back(found.add(first).to(at::kInt));
    }
    return at::cat(parts);
  }

  CyclicTopK& compressor_;
  BucketExchange& exchange_;
  at::Tensor x_;       // in the layout of the memory
  at::Tensor places_;  // indices into `x_`
  at::Tensor values_;
};

std::unique_ptr<Encoding> CyclicTopK::begin(BucketExchange& exchange) {
  return std::make_unique<CyclicTopKEncoding>(*this, exchange);
}

}  // namespace

CompressorKind cyclic_top_k_compressor() {
  return describe_compressor("cyclic_top_k",
                             "The largest elements of one rank, sent by all: ScaleCom.", 2,
                             cyclic_top_k_fields(),
                             [](const HookContext& context, const CompressingOptions& compressing,
                                const CyclicTopKOptions& options) {
                               return std::make_unique<CyclicTopK>(context, compressing, options);
                             });
}

}  // namespace q7x2
