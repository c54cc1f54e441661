#include "plan/choose/refinement.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

namespace q7x2 {
namespace {

// Numbers of calls: see the picture in the header.
constexpr uint64_t kBegin = 6;
constexpr uint64_t kOfAll = 18;        // all choices take turns
constexpr uint64_t kOfFinalists = 24;  // the finalists take turns
constexpr uint64_t kFirstEpoch = 128;
/// Number of calls before an epoch that are measured, to detect whether they have become slower.
constexpr uint64_t kWatched = 16;

constexpr int64_t kOne = 1000;  // ratios and noise are in thousandths
/// The error of the model's predictions relative to each other (docs/planner.md).
constexpr int64_t kModelNoise = 200;
constexpr int64_t kLeastNoise = 10;
/// A change must make calls at least 5 % faster.
constexpr int64_t kWorthAChange = 950;
/// A finalist appears at most 25 % slower than the best one.
constexpr int64_t kNear = 1250;
constexpr size_t kMostFinalists = 3;
/// If the present choice takes 1.5 times as long as when it was chosen, all choices are compared
/// again.
constexpr int64_t kSlower = 1500;
constexpr int64_t kLargestRatio = 10 * kOne;
constexpr int64_t kLongest = 1'000'000'000'000'000;
constexpr size_t kMostTimes = 64;

/// The position of a call in its epoch. An epoch is the calls from one power of two to the next.
uint64_t in_epoch(uint64_t call) {
  return call < kFirstEpoch ? call : call - std::bit_floor(call);
}

/// What a tuning round decides.
enum class Decision : uint8_t { kNone, kWhetherSlower, kFinalists, kWinner };

Decision decision_before(uint64_t call) {
  const uint64_t offset = in_epoch(call);
  const uint64_t begin = call < kFirstEpoch ? kBegin : 0;
  if (call >= kFirstEpoch && offset == 0) return Decision::kWhetherSlower;
  if (offset == begin + kOfAll) return Decision::kFinalists;
  if (offset == begin + kOfAll + kOfFinalists) return Decision::kWinner;
  return Decision::kNone;
}

uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ value >> 27) * 0x94d049bb133111ebULL;
  return value ^ value >> 31;
}

/// `count` choices take turns in rounds, each round in its own order: returns whose turn it is.
size_t turn_of(uint64_t begin, uint64_t call, size_t count) {
  const uint64_t round = (call - begin) / count;
  std::array<size_t, Refinement::kMostChoices> order{};
  std::iota(order.begin(), order.end(), size_t{0});
  uint64_t random = mix(begin << 32 | round);
  for (size_t i = count - 1; i > 0; --i) {
    random = mix(random);
    std::swap(order[i], order[random % (i + 1)]);
  }
  return order[(call - begin) % count];
}

}  // namespace

Refinement::Refinement(std::vector<int64_t> predicted, uint64_t first)
    : predicted_(std::move(predicted)), times_(predicted_.size()) {
  for (int64_t& each : predicted_) each = std::clamp<int64_t>(each, 1, kLongest);
  history_.push_back({.call = first, .choices = {0}});
  if (is_active() && first == 0) history_.push_back({.call = kBegin, .choices = all_choices()});
}

std::vector<size_t> Refinement::all_choices() const {
  std::vector<size_t> all(predicted_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  std::swap(all[0], all[history_.back().choices[0]]);
  return all;
}

bool Refinement::is_tuning_round(uint64_t call) {
  return decision_before(call) != Decision::kNone;
}

size_t Refinement::choice_of(uint64_t call) const {
  const Event& event = history_[call < kBegin ? 0 : history_.size() - 1];
  if (event.choices.size() == 1) return event.choices[0];
  return event.choices[turn_of(event.call, call, event.choices.size())];
}

bool Refinement::measures(uint64_t call) const {
  if (!is_active() || call < kBegin) return false;
  const uint64_t epoch = std::max(std::bit_ceil(call + 1), kFirstEpoch);
  return history_.back().choices.size() > 1 || epoch - call <= kWatched;
}

void Refinement::record(size_t choice, int64_t nanoseconds) {
  std::vector<int64_t>& times = times_[choice];
  if (times.size() < kMostTimes) times.push_back(std::clamp<int64_t>(nanoseconds, 1, kLongest));
}

// The middle third is robust against outliers. Its mean is the average time of calls whose times
// alternate between two values, as happens if ranks call in a loop and are early in turn. Noise
// only adds to times, so the lower half shows the spread of normal times. For n normal numbers, the
// error of the median is 1.86 times its distance to the lower quartile, divided by the square root
// of n.
Refinement::Figures Refinement::figures() const {
  Figures figures;
  for (size_t i = 0; i < times_.size(); ++i) {
    const size_t count = times_[i].size();
    if (count == 0) continue;
    std::vector<int64_t> times = times_[i];
    std::ranges::sort(times);
    const std::span middle = std::span(times).subspan(count / 3, count - 2 * (count / 3));
    const int64_t time = std::accumulate(middle.begin(), middle.end(), int64_t{0}) /
                         static_cast<int64_t>(middle.size());
    const double spread = static_cast<double>(time - times[(count - 1) / 4]);
    const double error = 1.86 * spread / std::sqrt(static_cast<double>(count));
    const auto noise = static_cast<int64_t>(error / static_cast<double>(time) * kOne);
    figures[i] = {time, count == 1 ? kOne : std::clamp(noise, kLeastNoise, kOne)};
  }
  return figures;
}

// The weighted mean of prediction and measurement. The weights are the inverse squares of their
// noise.
std::vector<int64_t> Refinement::ratios(const Figures& slowest) const {
  const size_t present = history_.back().choices[0];
  std::vector<int64_t> ratios;
  for (size_t i = 0; i < predicted_.size(); ++i) {
    const auto ratio = [](int64_t a, int64_t b) {
      return std::min(std::min(a, kLongest) * kOne / std::min(b, kLongest), kLargestRatio);
    };
    const int64_t expected = ratio(predicted_[i], predicted_[present]);
    if (i == present) {
      ratios.push_back(kOne);
    } else if (slowest[i].nanoseconds <= 0 || slowest[present].nanoseconds <= 0) {
      ratios.push_back(expected);
    } else {
      const int64_t measured = ratio(slowest[i].nanoseconds, slowest[present].nanoseconds);
      const auto square = [](int64_t noise) {
        noise = std::clamp(noise, kLeastNoise, kOne);
        return noise * noise;
      };
      const int64_t noise = square(slowest[i].noise) + square(slowest[present].noise);
      const int64_t model = kModelNoise * kModelNoise;
      ratios.push_back((expected * noise + measured * model) / (noise + model));
    }
  }
  return ratios;
}

std::vector<size_t> Refinement::finalists(const Figures& slowest) const {
  const std::vector<int64_t> ratios = this->ratios(slowest);
  std::vector<size_t> order = all_choices();
  std::stable_sort(order.begin() + 1, order.end(),
                   [&](size_t a, size_t b) { return ratios[a] < ratios[b]; });
  const int64_t best = *std::ranges::min_element(ratios);
  size_t count = 1;
  while (count < std::min(kMostFinalists, order.size()) &&
         ratios[order[count]] * kOne <= best * kNear) {
    ++count;
  }
  order.resize(count);
  return order;
}

size_t Refinement::winner(const Figures& slowest) const {
  const std::vector<int64_t> ratios = this->ratios(slowest);
  const std::vector<size_t>& choices = history_.back().choices;
  size_t best = choices[0];
  for (const size_t choice : choices) {
    if (ratios[choice] < ratios[best]) best = choice;
  }
  return ratios[best] < kWorthAChange ? best : choices[0];
}

bool Refinement::is_slower(const Figures& slowest) const {
  const int64_t now = slowest[history_.back().choices[0]].nanoseconds;
  return now > 0 && (reference_ == 0 || std::min(now, kLongest) * kOne > reference_ * kSlower);
}

void Refinement::decide(uint64_t call, std::vector<size_t> choices, const Figures& figures) {
  if (choices.size() == 1) {
    reference_ = std::min(figures[choices[0]].nanoseconds, kLongest);
    for (auto& times : times_) times.clear();
  }
  history_.push_back({call, std::move(choices), figures});
}

void Refinement::tune(uint64_t call, const Figures& slowest) {
  const bool is_exploring = this->is_exploring();
  switch (decision_before(call)) {
    case Decision::kWhetherSlower:
      if (is_slower(slowest)) decide(call, all_choices(), slowest);
      for (auto& times : times_) times.clear();
      return;
    case Decision::kFinalists:
      if (is_exploring) decide(call, finalists(slowest), slowest);
      return;
    case Decision::kWinner:
      if (is_exploring) decide(call, {winner(slowest)}, slowest);
      return;
    case Decision::kNone:
      return;
  }
}

}  // namespace q7x2
