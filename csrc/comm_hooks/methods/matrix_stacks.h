// The matrices that PowerSGD compresses: those of one shape in one bucket are stacked, so that one
// operation does all of them. And their bases, which belong to parameters, by name.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm_hooks/compress/compressor.h"
#include "comm_hooks/methods/low_rank_options.h"
#include "comm_hooks/methods/matrix_stack.h"

namespace q7x2 {

/// How one bucket is divided, while DDP keeps that bucket as it is.
struct StackLayout {
  uint64_t serial = 0;  ///< of the memory's piece
  std::vector<std::shared_ptr<Stack>> stacks;
  bool used = false;  ///< in this step
};

class MatrixStacks {
 public:
  MatrixStacks(const HookContext& context, const LowRankOptions& options)
      : context_(context), options_(options) {}

  const HookContext& context() const { return context_; }
  /// Of the parameter of this number, with the rank that holds in this step.
  MatrixShape shape_of(size_t number) const;
  /// Throws Error(kInvalidArgument) unless `rank` is a number from 1 to that of the options.
  void check_rank(size_t number, const std::string& rank) const;
  static at::ScalarType compute_dtype(at::ScalarType gradients) {
    return gradients == at::kDouble ? at::kDouble : at::kFloat;
  }
  /// Members of one stack come one after the other.
  void arrange(const Bucket& bucket, std::vector<size_t>& coded) const;
  /// The stacks of a bucket, with the state of their members.
  StackLayout& layout_of(const BucketExchange& exchange);
  /// The step's first product is M Q, and not M^T P.
  bool first_is_left() const { return is_left(iterations_); }
  /// This step starts from random bases, and not from the last one's.
  bool restarts() const { return restarts_in(iterations_); }
  void randomise(StackLayout& layout, const BucketExchange& exchange) const;

  /// Residuals are matrices then, and nothing is paid of them.
  void write_down();
  void commit();
  void abort();
  void save(HookState& shared) const;
  /// Throws Error(kInvalidArgument) for a basis of another shape, and has then changed nothing.
  void load(const HookState& shared);

 private:
  /// Of a parameter: for one iteration, and with `alternating` the last one of the other side.
  struct Bases {
    at::Tensor basis;  ///< undefined: not known yet
    at::Tensor other;
    uint64_t iteration = 0;
  };

  bool is_left(uint64_t iteration) const { return !options_.alternating || iteration % 2 == 0; }
  /// Random bases that this iteration has in common with others, by number.
  uint64_t start_of(uint64_t iteration) const;
  bool restarts_in(uint64_t iteration) const;
  /// Depends on the seed, the parameter's name and the iteration's start only.
  at::Tensor initial_basis(size_t number, uint64_t iteration) const;
  /// For this iteration. DDP may have left the parameter's bucket out since they were made.
  Bases bases_of(size_t number) const;
  /// The newest one of the side whose turn it is in `iteration`, this one or the next.
  at::Tensor newest_basis(size_t number, uint64_t iteration) const;
  bool has_ranks_of_now(const StackLayout& layout, const BucketExchange& exchange) const;
  /// With as many columns as the rank has now.
  at::Tensor fitted(const at::Tensor& basis, size_t number, uint64_t iteration) const;
  /// With the rank of the options.
  MatrixShape largest_shape_of(size_t number) const;
  /// Drops the layouts of buckets that DDP does not have any more.
  void forget_unused();
  void remember(const Stack& stack, const std::vector<size_t>& parameters);

  const HookContext& context_;
  const LowRankOptions& options_;
  std::map<size_t, StackLayout> layouts_;             // by index of the bucket
  std::map<size_t, std::vector<size_t>> parameters_;  // of the coded gradients, by index
  std::vector<Bases> bases_;                          // by number; views of stacks
  uint64_t iterations_ = 0;                           // steps that moved a basis
};

}  // namespace q7x2
