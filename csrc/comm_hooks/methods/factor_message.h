// FactorMessage: what PowerSGD sends at a time: factors, which may be rounded to 16 bits, preceded
// by elements that must not be compressed.
//
// A factor need not be exact. The ranks apply the product of the rounded factors, and its
// difference from the gradients stays in the residuals, together with everything that a low rank
// leaves out. So for the factors that are applied, a rank must know its exact contribution to their
// sum. Without rounding that is its own factor. Rounded factors go through a codec, which stores
// the error of each rank's rounding, and at the owner of each part the error of rounding the sum.
// That takes several passes, so ranks of one host add the applied factors without rounding.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm_hooks/run/hook.h"

namespace q7x2 {

class StockAllReduce;

class FactorMessage {
 public:
  struct Options {
    std::optional<at::ScalarType> dtype;  ///< the type to which factors are rounded
    bool over_stock = false;              ///< uses only collectives that every process group has
  };

  FactorMessage() = default;
  /// `elements`: one dimension; the first `whole` of them are not factors.
  FactorMessage(at::Tensor elements, int64_t whole, const Options& options)
      : elements_(std::move(elements)), whole_(whole), options_(options) {}

  const at::Tensor& elements() const { return elements_; }
  /// After the whole elements: this rank's contribution, and later the sums.
  at::Tensor factors() const { return elements_.narrow(0, whole_, elements_.numel() - whole_); }

  /// The sum over all ranks, by collectives that start together.
  std::vector<HookCollective> sum();
  /// The same; afterwards `own` is this rank's contribution. More collectives may follow.
  std::vector<HookCollective> sum_and_keep_own(const HookContext& context);
  /// Whether `next` has more collectives after those that are complete.
  bool has_next() const { return is_scattering_; }
  std::vector<HookCollective> next();

  /// To be called when collectives are complete. Returns false if the sum has Inf or NaN.
  bool receive();
  /// This rank's contribution to the sum of the factors.
  const at::Tensor& own() const { return own_; }

 private:
  bool has_factors() const { return elements_.numel() > whole_; }

  at::Tensor elements_;
  int64_t whole_ = 0;
  Options options_;
  at::Tensor rounded_;                // factors that are being summed, if not in place
  std::shared_ptr<at::Tensor> lost_;  // error of the codec; undefined: none
  at::Tensor own_;
  std::shared_ptr<StockAllReduce> stock_;
  bool is_scattering_ = false;
};

}  // namespace q7x2
