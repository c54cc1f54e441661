// What PowerSGD sends at a time: factors, which may be rounded to 16 bits on the way, and in front
// of them what is not compressed, which may not.
//
// A factor need not be exact. What the ranks apply is made from the rounded ones, and what that
// lacks of the gradients stays in the residuals, with all that a low rank leaves out. So of the
// factors that are applied a rank must know what it put into their sum, to the last bit. Unrounded,
// that is its own factor. Rounded ones travel through a codec, which keeps what each rank's own
// rounding loses, and at the owner of each part what rounding the sum does. That passes over them
// several times, so ranks of one host add the factors that are applied as they are.
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
    std::optional<at::ScalarType> dtype;  ///< that factors are rounded to
    bool over_stock = false;              ///< collectives of every process group are used
  };

  FactorMessage() = default;
  /// `elements`: of one dimension; the first `whole` of them are no factors.
  FactorMessage(at::Tensor elements, int64_t whole, const Options& options)
      : elements_(std::move(elements)), whole_(whole), options_(options) {}

  const at::Tensor& elements() const { return elements_; }
  /// Behind the whole elements: what this rank has to give; then the sums.
  at::Tensor factors() const { return elements_.narrow(0, whole_, elements_.numel() - whole_); }

  /// The sum over all ranks; collectives that start together.
  std::vector<HookCollective> sum();
  /// The same, and `own` tells afterwards what this rank put in. More collectives may follow.
  std::vector<HookCollective> sum_and_keep_own(const HookContext& context);
  /// Whether `next` has the collectives that follow those that are over.
  bool has_next() const { return is_scattering_; }
  std::vector<HookCollective> next();

  /// When collectives are over: whether the sum is finite, or is not there yet.
  bool receive();
  /// What this rank put into the sum of the factors.
  const at::Tensor& own() const { return own_; }

 private:
  bool has_factors() const { return elements_.numel() > whole_; }

  at::Tensor elements_;
  int64_t whole_ = 0;
  Options options_;
  at::Tensor rounded_;                // factors on their way, if that is not in place
  std::shared_ptr<at::Tensor> lost_;  // by the codec, if there is one; undefined: nothing
  at::Tensor own_;
  std::shared_ptr<StockAllReduce> stock_;
  bool is_scattering_ = false;
};

}  // namespace q7x2
