#include "comm_hooks/codec_choice.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "comm_hooks/bit_allocation.h"

namespace q7x2 {
namespace {

constexpr const char* kChoice = "choice";
constexpr const char* kPeriod = "choice_period";
constexpr const char* kNorm = "choice_norm";

}  // namespace

CodecPtr CodecChoice::chosen(size_t number) const {
  return number < chosen_.size() && chosen_[number] ? choices_[*chosen_[number]] : nullptr;
}

bool CodecChoice::measures_at(uint64_t step) const {
  return !choices_.empty() && step >= rule_.first_step && period_of(step) != chosen_in_;
}

void CodecChoice::measure(const at::Tensor& values, std::vector<float>& into) const {
  const float* const begin = values.const_data_ptr<float>();
  const float* const end = begin + values.numel();
  into.push_back(std::transform_reduce(begin, end, 0.0F, std::plus<>(),
                                       [](float value) { return value * value; }));
  if (by_change()) return;
  for (const CodecPtr& choice : choices_) {
    const auto count = static_cast<size_t>(values.numel());
    into.push_back(static_cast<float>(choice->squared_error(begin, count)));
  }
}

void CodecChoice::note(uint64_t step, size_t number, const float* sums) {
  choosing_in_ = period_of(step);
  errors_[number] = {sums, sums + columns()};
}

void CodecChoice::commit() {
  if (errors_.empty()) return;
  chosen_.resize(context_.parameters.size());
  if (by_change()) {
    choose_by_change();
  } else {
    choose_by_error();
  }
  chosen_in_ = choosing_in_;
  errors_.clear();
}

void CodecChoice::choose_by_error() {
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
  auto choice = choices.begin();
  for (const auto& [number, errors] : errors_) {
    if (*choice) chosen_[number] = *choice;
    ++choice;
  }
}

void CodecChoice::choose_by_change() {
  for (const auto& [number, squares] : errors_) {
    const double norm = std::sqrt(static_cast<double>(squares[0]));
    const auto last = norms_.find(number);
    const bool settled = last != norms_.end() &&
                         std::abs(norm - last->second) < rule_.critical_change * last->second;
    chosen_[number] = settled ? 1 : 0;
    norms_[number] = norm;
  }
}

void CodecChoice::save(HookState& shared, const std::function<bool(size_t)>& is_coded) const {
  if (choices_.empty()) return;
  shared[kPeriod]["last"] = at::scalar_tensor(chosen_in_, at::kLong);
  for (size_t number = 0; number < context_.parameters.size(); ++number) {
    if (!is_coded(number)) continue;
    const int64_t choice =
        number < chosen_.size() && chosen_[number] ? static_cast<int64_t>(*chosen_[number]) : -1;
    shared[kChoice][context_.parameters[number].name] = at::scalar_tensor(choice, at::kLong);
    if (!by_change()) continue;
    const auto norm = norms_.find(number);
    shared[kNorm][context_.parameters[number].name] =
        at::scalar_tensor(norm == norms_.end() ? -1.0 : norm->second, at::kDouble);
  }
}

void CodecChoice::load(const HookState& shared) {
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
  norms_.clear();
  const auto norms = shared.find(kNorm);
  for (size_t number = 0; norms != shared.end() && number < chosen.size(); ++number) {
    const auto norm = norms->second.find(context_.parameters[number].name);
    if (norm == norms->second.end() || norm->second.item<double>() < 0) continue;
    norms_[number] = norm->second.item<double>();
  }
  const auto period = shared.find(kPeriod);
  chosen_in_ = period == shared.end() ? -1 : period->second.at("last").item<int64_t>();
  chosen_ = std::move(chosen);
  errors_.clear();
}

}  // namespace q7x2
