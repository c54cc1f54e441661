// Which codec each gradient goes through: the stage's, or one of several by what each would lose.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm_hooks/hook.h"
#include "kernels/codec.h"

namespace q7x2 {

using CodecPtr = std::shared_ptr<const Codec>;

/// How codecs are chosen. Every `period` steps all ranks measure, add that up and choose the same.
struct ChoiceRule {
  uint64_t first_step = 0;
  uint64_t period = 1;
  /// 0: by what each choice would lose of each gradient (bit_allocation.h). Else by how a
  /// gradient's norm, residual included, has changed since the last measurement: the first codec if
  /// by at least this share, the second if by less. Agarwal et al., "Accordion", 2020.
  double critical_change = 0;
};

class CodecChoice {
 public:
  /// `choices`: the first is what the others are compared with; empty: nothing is ever chosen.
  CodecChoice(const HookContext& context, std::vector<CodecPtr> choices, ChoiceRule rule)
      : context_(context), choices_(std::move(choices)), rule_(rule) {}

  /// Null: none has been chosen for this parameter.
  CodecPtr chosen(size_t number) const;
  /// Once a period, in its first step that is compressed and kept.
  bool measures_at(uint64_t step) const;
  /// Of one gradient, this rank's numbers: its squared norm and, if the rule is about errors, what
  /// each choice would lose of it, squared. `values`: fp32, on the CPU.
  void measure(const at::Tensor& values, std::vector<float>& into) const;
  size_t columns() const { return by_change() ? 1 : 1 + choices_.size(); }
  /// The sums over the ranks of what was measured at `step`.
  void note(uint64_t step, size_t number, const float* sums);

  void commit();
  void abort() { errors_.clear(); }
  /// Gradients are `factor` times as large from now on.
  void rescale(double factor) {
    for (auto& [number, norm] : norms_) norm *= factor;
  }
  /// `is_coded(number)`: the parameter has a codec.
  void save(HookState& shared, const std::function<bool(size_t)>& is_coded) const;
  void load(const HookState& shared);

 private:
  int64_t period_of(uint64_t step) const {
    return static_cast<int64_t>((step - rule_.first_step) / rule_.period);
  }
  bool by_change() const { return rule_.critical_change > 0; }
  void choose_by_error();
  void choose_by_change();

  const HookContext& context_;
  const std::vector<CodecPtr> choices_;
  const ChoiceRule rule_;
  std::map<size_t, std::vector<float>> errors_;  // of this step, by number: rows of `measure`
  std::vector<std::optional<size_t>> chosen_;    // by number
  std::map<size_t, double> norms_;               // of the last measurement, by number; by_change
  int64_t chosen_in_ = -1;                       // the last period with a choice
  int64_t choosing_in_ = -1;                     // that of errors_
};

}  // namespace q7x2
