// The matrices that PowerSGD compresses: those with the same shape in one bucket are stacked, so
// that one operation processes all of them. And their bases, which belong to parameters, by name.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm_hooks/compress/compressor.h"
#include "comm_hooks/methods/low_rank_options.h"
#include "comm_hooks/methods/matrix_stack.h"

namespace q7x2 {

/// How one bucket is divided, as long as DDP does not change this bucket.
struct StackLayout {
  uint64_t serial = 0;  ///< serial number of the memory's piece
  std::vector<std::shared_ptr<Stack>> stacks;
  bool used = false;  ///< whether it is used in this step
};

class MatrixStacks {
 public:
  MatrixStacks(const HookContext& context, const LowRankOptions& options)
      : context_(context), options_(options) {}

  const HookContext& context() const { return context_; }
  /// The shape of the parameter with this number, with the rank that is used in this step.
  MatrixShape shape_of(size_t number) const;
  /// Throws Error(kInvalidArgument) unless `rank` is a number from 1 to the rank in the options.
  void check_rank(size_t number, const std::string& rank) const;
  static at::ScalarType compute_dtype(at::ScalarType gradients) {
    return gradients == at::kDouble ? at::kDouble : at::kFloat;
  }
  /// Makes the members of one stack neighbours.
  void arrange(const Bucket& bucket, std::vector<size_t>& coded) const;
  /// The stacks of a bucket, with the state of their members.
  StackLayout& layout_of(const BucketExchange& exchange);
  /// Whether the step's first product is M Q instead of M^T P.
  bool first_is_left() const { return is_left(iterations_); }
  /// Whether this step starts from random bases instead of the last ones.
  bool restarts() const { return restarts_in(iterations_); }
  void randomise(StackLayout& layout, const BucketExchange& exchange) const;

  /// Computes the residuals explicitly, so that they are matrices without factors.
  void write_down();
  void commit();
  void abort();
  void save(HookState& shared) const;
  /// Throws Error(kInvalidArgument) if a basis has another shape; then nothing has changed.
  void load(const HookState& shared);

 private:
  /// The bases of a parameter for one iteration; with `alternating` also the last one of the other
  /// side.
  struct Bases {
    at::Tensor basis;  ///< undefined: not known yet
    at::Tensor other;
    uint64_t iteration = 0;
  };

  bool is_left(uint64_t iteration) const { return !options_.alternating || iteration % 2 == 0; }
  /// The number of the random bases with which this iteration started; iterations may share it.
  uint64_t start_of(uint64_t iteration) const;
  bool restarts_in(uint64_t iteration) const;
  /// Depends only on the seed, the parameter's name and `start_of(iteration)`.
  at::Tensor initial_basis(size_t number, uint64_t iteration) const;
  /// The bases for this iteration. They may be older, because DDP may have left out the parameter's
  /// bucket.
  Bases bases_of(size_t number) const;
  /// The newest basis of the side whose turn is in `iteration`, which is this iteration or the
  /// next.
  at::Tensor newest_basis(size_t number, uint64_t iteration) const;
  bool has_ranks_of_now(const StackLayout& layout, const BucketExchange& exchange) const;
  /// The basis with as many columns as the current rank.
  at::Tensor fitted(const at::Tensor& basis, size_t number, uint64_t iteration) const;
  /// The shape with the rank of the options.
  MatrixShape largest_shape_of(size_t number) const;
  /// Drops the layouts of buckets that DDP no longer has.
  void forget_unused();
  void remember(const Stack& stack, const std::vector<size_t>& parameters);

  const HookContext& context_;
  const LowRankOptions& options_;
  std::map<size_t, StackLayout> layouts_;             // by index of the bucket
  std::map<size_t, std::vector<size_t>> parameters_;  // parameters of the coded gradients, by index
  std::vector<Bases> bases_;                          // by parameter number; views of stacks
  uint64_t iterations_ = 0;                           // number of steps that updated a basis
};

}  // namespace q7x2
