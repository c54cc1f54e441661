// PowerSGD: one step of power iteration per training step, started from the result of the last one.
//
// The gradient of a weight is a matrix M, n x m, that is mostly in few directions. With an m x r
// matrix Q of orthonormal columns, and sums over the ranks,
//
//   P = orthonormal(sum M Q)     n x r, one all-reduce
//   Q' = sum M^T P               m x r, one all-reduce
//   mean of the gradients ~ P Q'^T,   next Q = orthonormal(Q')
//
// Both products are linear in M, so they are summed like any gradient, by any algorithm. A rank has
// contributed P (M^T P)^T to the mean. The rest of its M is its residual, and is added to its next
// gradient. The residuals of all ranks together are what the mean lacks. (In PyTorch's hook each
// rank subtracts the mean from its M. The sum is the same, but each rank's residual grows if the
// gradients of ranks differ, and is wrong as soon as a rank has no gradient to send it with.)
//
// A rank stores M and its factors, and subtracts their product from M when it adds the next
// gradient. That saves a pass over the matrices, and at the end of a step only the gradients are
// waited for.
//
//   bytes     2 r (n + m) instead of 4 n m, with factors in 16 bits; vectors and small matrices are
//             sent whole, at the same time as P
//   compute   4 n m r multiply-adds per rank, in three passes over M (kernels/cpu/low_rank.h)
//
// `alternating` computes only one of the two products per step: M Q in one step, and M^T P with the
// resulting P in the next. That is one collective per step and half the bytes, but the basis
// follows the gradients half as fast; with error feedback that is hardly worse.
//
// A warm basis can miss a direction that has become large, because power iteration only finds
// directions that are not orthogonal to the basis. `reset_every` starts again from random factors
// now and then, a simple form of what PowerSGD+ (arXiv 2509.11254, 2025) does with singular
// vectors.
//
// A policy can lower the rank of a matrix and raise it again. A lower rank keeps the first columns
// of the basis, which follow the largest directions; a higher one adds random columns.
//
// It wins if the network is slower than three passes over the gradients, for matrices of low rank.
// Those of dense layers are, but embeddings of rare tokens are not.
// Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
// optimization", 2019.
#include <memory>
#include <utility>

#include "comm_hooks/compress/compressors.h"
#include "comm_hooks/methods/factor_message.h"
#include "comm_hooks/methods/low_rank_options.h"
#include "comm_hooks/methods/matrix_products.h"
#include "comm_hooks/methods/matrix_stacks.h"
#include "comm_hooks/methods/orthonormal.h"

namespace q7x2 {
namespace {

OptionFields<LowRankOptions> low_rank_fields() {
  return OptionFields<LowRankOptions>()
      .add("ranks", &LowRankOptions::ranks,
           "The rank of the approximation, by parameter number; 0 sends that gradient whole.")
      .add("default_rank", &LowRankOptions::default_rank,
           "The rank of parameters beyond the end of `ranks`.", {.least = 0})
      .add("min_compression_rate", &LowRankOptions::min_compression_rate,
           "A matrix is compressed if that makes it more than this many times smaller.",
           {.above = 0})
      .add("warm_start", &LowRankOptions::warm_start,
           "Each step begins with the factor of the last one instead of a random one.")
      .add("reset_every", &LowRankOptions::reset_every,
           "With `warm_start`: every `reset_every` compressed steps begin with random factors; 0: "
           "never.")
      .add("alternating", &LowRankOptions::alternating,
           "One collective per step: the two halves of the power iteration take turns.")
      .add(
          "factor_dtype", &LowRankOptions::factor_dtype,
          "The type that factors are rounded to when they are sent; None: that of the computation.")
      .add("over_stock", &LowRankOptions::over_stock,
           "The collectives of every process group are used instead of q7x2's own.")
      .add("random_seed", &LowRankOptions::random_seed, "The seed of random factors.");
}

class LowRank final : public Compressor {
 public:
  LowRank(const HookContext& context, const CompressingOptions& compressing, LowRankOptions options)
      : Compressor(context, compressing),
        options_(std::move(options)),
        stacks_(context, options_) {}

  size_t lanes() const override {
    const bool gathers = compressing_.error_feedback && options_.factor_dtype;
    return (options_.alternating ? 1 : 2) + (gathers && options_.over_stock ? 1 : 0);
  }
  void arrange(const Bucket& bucket, std::vector<size_t>& coded) const override {
    stacks_.arrange(bucket, coded);
  }
  at::ScalarType memory_dtype(at::ScalarType gradients) const override {
    return MatrixStacks::compute_dtype(gradients);
  }
  /// `level`: a rank, as text.
  void check(size_t parameter, const std::string& level) const override {
    stacks_.check_rank(parameter, level);
  }
  bool multiplies() const override { return true; }
  bool looks_for_nonfinite() const override { return true; }
  bool finishes_late() const override { return true; }
  std::unique_ptr<Encoding> begin(BucketExchange& exchange) override;

  void write_down() override { stacks_.write_down(); }
  void commit() override { stacks_.commit(); }
  void abort() override { stacks_.abort(); }
  void save(HookState& shared, HookState&) const override { stacks_.save(shared); }
  void load(const HookState& shared, const HookState&) override { stacks_.load(shared); }

 protected:
  bool can_take(size_t parameter) const override { return stacks_.shape_of(parameter).rank > 0; }

 private:
  friend class LowRankEncoding;

  const LowRankOptions options_;
  MatrixStacks stacks_;
};

class LowRankEncoding final : public Encoding {
 public:
  LowRankEncoding(LowRank& compressor, BucketExchange& exchange)
      : options_(compressor.options_),
        stacks_(compressor.stacks_),
        exchange_(exchange),
        layout_(stacks_.layout_of(exchange)),
        first_is_left_(stacks_.first_is_left()) {}

  MessageRound encode() override {
    const PhaseTimer timer = exchange_.bucket.time("encode");
    message_ = new_message(exchange_.side_numel(), first_is_left_, first_);
    exchange_.pack_side(message_.elements().narrow(0, 0, exchange_.side_numel()));
    if (stacks_.restarts()) stacks_.randomise(layout_, exchange_);
    for (size_t i = 0; i < layout_.stacks.size(); ++i) {
      Stack& stack = *layout_.stacks[i];
      std::vector<at::Tensor> gradients = matrices_of(stack);
      for (size_t row = 0; row < gradients.size(); ++row) {
        if (exchange_.idle[stack.members[row]]) gradients[row] = at::Tensor();
      }
      load_and_multiply(stack, gradients, exchange_.share, first_is_left_, first_[i]);
    }
    if (options_.alternating || layout_.stacks.empty()) return last_round();
    return {message_.sum(), Rest::kCollectives};
  }

  bool receive() override { return message_.receive(); }

  MessageRound fold() override {
    if (message_.has_next()) return {message_.next(), Rest::kNone};
    {
      const PhaseTimer timer = exchange_.bucket.time("orthonormalise");
      make_orthonormal(first_);
    }
    const PhaseTimer timer = exchange_.bucket.time("project");
    message_ = new_message(0, false, second_);
    for (size_t i = 0; i < layout_.stacks.size(); ++i) {
      multiply(layout_.stacks[i]->next_owed, first_[i], false, second_[i]);
    }
    return last_round();
  }

  void decode() override {
    const PhaseTimer timer = exchange_.bucket.time("decode");
    const bool sends_left = options_.alternating && first_is_left_;
    const auto& sums = options_.alternating ? first_ : second_;
    const auto own = exchange_.has_residual ? products_in(message_.own(), sends_left) : sums;
    for (size_t i = 0; i < layout_.stacks.size(); ++i) {
      Stack& stack = *layout_.stacks[i];
      const at::Tensor& kept = options_.alternating ? stack.basis : first_[i];
      expand(stack, factors(kept, sums[i], sends_left), factors(kept, own[i], sends_left),
             matrices_of(stack), exchange_.mean_share);
    }
  }

  /// Each stack's next basis is computed from its latest product. A matrix that no rank used has a
  /// product of zeros, and keeps its old basis.
  void finish() override {
    const PhaseTimer timer = exchange_.bucket.time("orthonormalise");
    const auto& products = options_.alternating ? first_ : second_;
    std::vector<at::Tensor> are_used;
    for (const at::Tensor& product : products) {
      are_used.push_back(product.ne(0).flatten(1).any(1).view({-1, 1, 1}));
    }
    make_orthonormal(products);
    for (size_t i = 0; i < layout_.stacks.size(); ++i) {
      Stack& stack = *layout_.stacks[i];
      const at::Tensor& last = options_.alternating ? stack.other_basis : stack.basis;
      stack.next_basis = at::where(are_used[i], products[i], last);
    }
  }

 private:
  std::vector<at::Tensor> matrices_of(const Stack& stack) const {
    std::vector<at::Tensor> matrices;
    for (const size_t member : stack.members) {
      matrices.push_back(exchange_.source(member).view({stack.shape.n, stack.shape.m}));
    }
    return matrices;
  }

  /// The round whose sums are applied: this rank's contribution is subtracted from its residuals.
  MessageRound last_round() {
    auto collectives =
        exchange_.has_residual ? message_.sum_and_keep_own(stacks_.context()) : message_.sum();
    return {std::move(collectives), message_.has_next() ? Rest::kCollectives : Rest::kNone};
  }

  /// P and Q'^T; with `alternating` the factor that was sent and the transposed basis, or the
  /// reverse.
  static Factors factors(const at::Tensor& kept, const at::Tensor& sent, bool sends_left) {
    const auto& [left, right] = sends_left ? std::pair(sent, kept) : std::pair(kept, sent);
    return {left.contiguous(), right.mT().contiguous()};
  }

  /// The products of all stacks, one after the other, as views with `rank` columns. M^T P is stored
  /// as `rank` long rows.
  std::vector<at::Tensor> products_in(const at::Tensor& packed, bool left) const {
    std::vector<at::Tensor> products;
    int64_t offset = 0;
    for (const auto& stack : layout_.stacks) {
      const auto& [n, m, rank] = stack->shape;
      const int64_t count = stack->count();
      const int64_t numel = count * (left ? n : m) * rank;
      const at::Tensor part = packed.narrow(0, offset, numel);
      products.push_back(left ? part.view({count, n, rank}) : part.view({count, rank, m}).mT());
      offset += numel;
    }
    return products;
  }

  /// The layout is [side | `products`].
  FactorMessage new_message(int64_t side, bool left, std::vector<at::Tensor>& products) const {
    int64_t numel = side;
    for (const auto& stack : layout_.stacks) {
      const auto& [n, m, rank] = stack->shape;
      numel += stack->count() * (left ? n : m) * rank;
    }
    const at::Tensor& buffer = exchange_.bucket.buffer;
    const auto dtype = MatrixStacks::compute_dtype(buffer.scalar_type());
    FactorMessage message(at::empty({numel}, buffer.options().dtype(dtype)), side,
                          {options_.factor_dtype, options_.over_stock});
    products = products_in(message.factors(), left);
    return message;
  }

  const LowRankOptions& options_;
  MatrixStacks& stacks_;
  BucketExchange& exchange_;
  StackLayout& layout_;
  const bool first_is_left_;
  FactorMessage message_;
  std::vector<at::Tensor> first_;  // P of each stack, or Q' if it is its turn
  std::vector<at::Tensor> second_;
};

std::unique_ptr<Encoding> LowRank::begin(BucketExchange& exchange) {
  return std::make_unique<LowRankEncoding>(*this, exchange);
}

}  // namespace

CompressorKind low_rank_compressor() {
  return describe_compressor("low_rank",
                             "Gradients of matrices as products of two thin ones: PowerSGD.", 3,
                             low_rank_fields(),
                             [](const HookContext& context, const CompressingOptions& compressing,
                                const LowRankOptions& options) {
                               return std::make_unique<LowRank>(context, compressing, options);
                             });
}

}  // namespace q7x2
