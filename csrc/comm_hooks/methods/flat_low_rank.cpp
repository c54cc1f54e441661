// PowerSGD of a whole bucket: its gradients, one after the other, folded into one square matrix.
//
//   bytes     4 r sqrt(N) instead of 4 N, in two collectives, with factors in 16 bits (three over
//             process groups of others)
//   compute   4 N r multiply-adds per rank
//
// It has one matrix product per bucket, and fewer bytes than matrix by matrix, but the
// approximation ignores rows and columns. It is worth it if communication dominates, and with
// residuals. It compresses vectors as well, and gradients that are shards of others.
//
// The basis belongs to the bucket: if DDP rebuilds its buckets, it starts again.
// Vogels et al., "PowerSGD", 2019; `batched_powerSGD_hook` of PyTorch.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "comm_hooks/compress/compressors.h"
#include "comm_hooks/compress/held_state.h"
#include "comm_hooks/methods/factor_message.h"
#include "comm_hooks/methods/orthonormal.h"

namespace q7x2 {
namespace {

constexpr const char* kBasis = "basis_by_bucket";

struct FlatLowRankOptions {
  int64_t rank = 1;
  bool warm_start = true;
  std::optional<at::ScalarType> factor_dtype;
  bool over_stock = false;
  uint64_t random_seed = 0;
};

OptionFields<FlatLowRankOptions> flat_low_rank_fields() {
  return OptionFields<FlatLowRankOptions>()
      .add("rank", &FlatLowRankOptions::rank, "The rank of the approximation of a bucket.",
           {.least = 1})
      .add("warm_start", &FlatLowRankOptions::warm_start,
           "Each step begins with the factor of the last one instead of a random one.")
      .add(
          "factor_dtype", &FlatLowRankOptions::factor_dtype,
          "The type that factors are rounded to when they are sent; None: that of the computation.")
      .add("over_stock", &FlatLowRankOptions::over_stock,
           "The collectives of every process group are used instead of q7x2's own.")
      .add("random_seed", &FlatLowRankOptions::random_seed, "The seed of random factors.");
}

/// Number of columns and rows of the smallest square that holds this many elements.
int64_t side_of(int64_t numel) {
  auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(numel))));
  while (side * side < numel) ++side;
  return side;
}

class FlatLowRank final : public Compressor {
 public:
  FlatLowRank(const HookContext& context, const CompressingOptions& compressing,
              FlatLowRankOptions options)
      : Compressor(context, compressing), options_(std::move(options)) {}

  size_t lanes() const override {
    const bool gathers = compressing_.error_feedback && options_.factor_dtype;
    return gathers && options_.over_stock ? 3 : 2;
  }
  bool looks_for_nonfinite() const override { return true; }
  bool finishes_late() const override { return true; }
  std::unique_ptr<Encoding> begin(BucketExchange& exchange) override;

  void commit() override {
    if (!next_bases_.empty()) ++iterations_;
    if (options_.warm_start) {
      for (auto& [index, basis] : next_bases_) bases_[index] = std::move(basis);
    }
    next_bases_.clear();
  }

  void abort() override { next_bases_.clear(); }

  void save(HookState& shared, HookState&) const override {
    shared[kBasis];  // a new hook has this kind, too, so a checkpoint can be loaded
    for (const auto& [index, basis] : bases_) shared[kBasis][std::to_string(index)] = basis.clone();
    shared["iterations"]["count"] = at::scalar_tensor(static_cast<int64_t>(iterations_), at::kLong);
  }

  void load(const HookState& shared, const HookState&) override {
    bases_.clear();
    const auto bases = shared.find(kBasis);
    if (bases != shared.end()) {
      for (const auto& [index, basis] : bases->second) bases_[std::stoul(index)] = basis.clone();
    }
    const auto iterations = shared.find("iterations");
    iterations_ = iterations == shared.end()
                      ? 0
                      : static_cast<uint64_t>(iterations->second.at("count").item<int64_t>());
  }

 private:
  friend class FlatEncoding;

  const at::Tensor& basis_of(const Bucket& bucket, int64_t side) {
    at::Tensor& basis = bases_[bucket.index];
    if (options_.warm_start && basis.defined() && basis.size(0) == side) return basis;
    at::Generator generator = at::detail::createCPUGenerator(
        options_.random_seed + bucket.index +
        0x9e3779b97f4a7c15U * (options_.warm_start ? 0 : iterations_));
    const int64_t rank = std::min(options_.rank, side);
    basis = at::randn({side, rank}, generator, at::kFloat).to(bucket.buffer.device());
    make_orthonormal({basis.unsqueeze(0)});
    return basis;
  }

  const FlatLowRankOptions options_;
  std::map<size_t, at::Tensor> bases_;  // Q, orthonormal, by index of the bucket
  std::map<size_t, at::Tensor> next_bases_;
  uint64_t iterations_ = 0;  // number of steps that updated a basis
};

class FlatEncoding final : public Encoding {
 public:
  FlatEncoding(FlatLowRank& compressor, BucketExchange& exchange)
      : compressor_(compressor), exchange_(exchange) {
    exchange.counts_uses = true;
  }

  MessageRound encode() override {
    const PhaseTimer timer = exchange_.bucket.time("encode");
    load();
    basis_ = compressor_.basis_of(exchange_.bucket, matrix_.size(0));
    const at::Tensor p = at::mm(basis_.t(), matrix_.t()).t();
    const int64_t side = exchange_.side_numel();
    const at::Tensor elements = at::empty({side + p.numel()}, p.options());
    exchange_.pack_side(elements.narrow(0, 0, side));
    p_ = elements.narrow(0, side, p.numel()).view(p.sizes());
    p_.copy_(p);
    message_ = FactorMessage(elements, side, how());
    return {message_.sum(), Rest::kCollectives};
  }

  bool receive() override { return message_.receive(); }

  MessageRound fold() override {
    const PhaseTimer timer = exchange_.bucket.time("project");
    if (message_.has_next()) return {message_.next(), Rest::kNone};
    make_orthonormal({p_.unsqueeze(0)});
    q_ = at::mm(p_.t(), matrix_).t().contiguous();
    message_ = FactorMessage(q_.flatten(), 0, how());
    auto collectives =
        exchange_.has_residual ? message_.sum_and_keep_own(compressor_.context_) : message_.sum();
    return {std::move(collectives), message_.has_next() ? Rest::kCollectives : Rest::kNone};
  }

  void decode() override {
    const PhaseTimer timer = exchange_.bucket.time("decode");
    const ErrorFeedback::Piece& memory = *exchange_.memory;
    const at::Tensor mean = at::mm(p_, q_.t());
    const at::Tensor flat = mean.flatten().narrow(0, 0, memory.numel);
    for (size_t i = 0; i < exchange_.coded.size(); ++i) {
      exchange_.source(i).copy_(memory.at(flat, i));
    }
    if (!exchange_.has_residual) return;
    matrix_.addmm_(p_, message_.own().view(q_.sizes()).t(), 1, -1);
    at::Tensor next = memory.next[kResidual];
    next.copy_(matrix_.flatten().narrow(0, 0, memory.numel));
    if (exchange_.source(0).scalar_type() == flat.scalar_type()) return;
    // values that a narrow type cannot represent
    for (size_t i = 0; i < exchange_.coded.size(); ++i) {
      memory.next_of(kResidual, i)
          .add_(memory.at(flat, i) - exchange_.source(i), exchange_.mean_share);
    }
  }

  void finish() override {
    const PhaseTimer timer = exchange_.bucket.time("orthonormalise");
    const auto& unused = exchange_.unused;
    const bool is_used = unused.empty() || std::ranges::find(unused, false) != unused.end();
    if (is_used) make_orthonormal({q_.unsqueeze(0)});
    compressor_.next_bases_[exchange_.bucket.index] = is_used ? q_ : basis_;
  }

 private:
  FactorMessage::Options how() const {
    return {compressor_.options_.factor_dtype, compressor_.options_.over_stock};
  }

  /// Computes this rank's contribution to the mean, with its residual.
  void load() {
    const ErrorFeedback::Piece& memory = *exchange_.memory;
    const int64_t side = side_of(memory.numel);
    const auto options = exchange_.bucket.buffer.options().dtype(at::kFloat);
    const at::Tensor flat = at::zeros({side * side}, options);
    for (size_t i = 0; i < exchange_.coded.size(); ++i) {
      at::Tensor target = memory.at(flat, i);
      target.copy_(exchange_.source(i));
      if (exchange_.has_residual) target.add_(memory.now_of(kResidual, i));
    }
    matrix_ = flat.view({side, side});
  }

  FlatLowRank& compressor_;
  BucketExchange& exchange_;
  at::Tensor matrix_;  // M, padded with zeros
  at::Tensor basis_;
  at::Tensor p_;
  at::Tensor q_;
  FactorMessage message_;
};

std::unique_ptr<Encoding> FlatLowRank::begin(BucketExchange& exchange) {
  return std::make_unique<FlatEncoding>(*this, exchange);
}

}  // namespace

CompressorKind flat_low_rank_compressor() {
  return describe_compressor("flat_low_rank",
                             "Whole buckets as products of two thin matrices: batched PowerSGD.", 3,
                             flat_low_rank_fields(),
                             [](const HookContext& context, const CompressingOptions& compressing,
                                const FlatLowRankOptions& options) {
                               return std::make_unique<FlatLowRank>(context, compressing, options);
                             });
}

}  // namespace q7x2
