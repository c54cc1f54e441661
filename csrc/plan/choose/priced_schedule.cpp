#include "plan/choose/priced_schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/choose/choice.h"

namespace q7x2 {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
/// If several hosts send to one NIC, the bytes in flight should not exceed what the NIC receives in
/// this time. Queues are about as long, and what does not fit is sent again.
constexpr double kQueueSeconds = 0.02;
/// The largest total of all scratch blocks of all slices in progress.
constexpr size_t kMaxScratchBytes = 32 * kMiB;
/// The largest total that all slices in progress put into shared memory. Two of the largest calls
/// fit.
constexpr size_t kMaxStagedBytes = 8 * kMiB;
constexpr size_t kAlignment = 64;
/// Number of ops per message: sends, receives, and the work on the received data.
constexpr double kOpsPerMessage = 2.5;

/// From this number of ops of all ranks on, a search for ranks that represent others is worthwhile.
constexpr double kManyOps = 100e3;

/// A call after a silence is simulated into its steady state. If only ranks that represent others
/// are simulated, it is worth this number of ops.
constexpr double kSlicesAfterSilence = 12;
constexpr double kMostOpsAfterSilence = 2e6;

/// The cost of making an op of a Plan, and of a coded Plan, relative to simulating it.
constexpr double kMaking = 0.5;
constexpr double kMakingCoded = 3;

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

size_t divide_up(size_t value, size_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace

PricedSchedule::PricedSchedule(std::shared_ptr<const Schedule> schedule, const Site& site,
                               const CodingCost& coding, bool is_uneven)
    : schedule_(std::move(schedule)),
      site_(site),
      coding_(coding),
      is_uneven_(is_uneven),
      alignment_(schedule_->edges() == Edges::kNone ? kAlignment : coding.group_bytes),
      model_(*schedule_, site, coding) {
  const std::vector<uint32_t>& weights = schedule_->part_weights();
  if (weights.empty()) return;
  total_weight_ = std::accumulate(weights.begin(), weights.end(), size_t{0});
  heaviest_ = *std::ranges::max_element(weights);
}

size_t PricedSchedule::longest_part(int window) const {
  const auto slices = static_cast<size_t>(window);
  return std::min(kMaxScratchBytes / (std::max<size_t>(model_.scratch_blocks(), 1) * slices),
                  kMaxStagedBytes / (std::max<size_t>(model_.shared_stages(), 1) * slices));
}

Cut PricedSchedule::cut(size_t bytes, size_t part_bytes, int window) const {
  const size_t allowed = std::max<size_t>(std::min(part_bytes, longest_part(window)), 1);
  const size_t longest = is_uneven_ ? allowed : divide_up(bytes, total_weight_) * heaviest_;
  // Slices of equal length, instead of many long ones and a short rest.
  const size_t slices = std::max<size_t>(divide_up(longest, allowed), 1);
  return in_slices(bytes, divide_up(longest, slices) / heaviest_ * total_weight_, window);
}

Cut PricedSchedule::in_slices(size_t bytes, size_t slice_bytes, int window) const {
  window = std::clamp(window, 1, Choice::kMaxWindow);
  const size_t longest_unit =
      std::max(longest_part(window) / heaviest_ / alignment_ * alignment_, alignment_);
  const size_t wished = std::min(slice_bytes, longest_unit * total_weight_);
  const size_t unit = round_up(std::max<size_t>(divide_up(wished, total_weight_), 1), alignment_);
  const size_t slice = unit * total_weight_;
  const size_t useful = is_uneven_
                            ? Choice::kMaxWindow
                            : std::clamp<size_t>(divide_up(bytes, slice), 1, Choice::kMaxWindow);
  return {slice, unit * heaviest_, std::min(window, static_cast<int>(useful))};
}

double PricedSchedule::estimate(size_t bytes, const Cut& cut) const {
  return model_.seconds({bytes, cut.slice_bytes, cut.window});
}

Prediction PricedSchedule::estimate_loads(size_t bytes, const Cut& cut) const {
  return model_.predict({bytes, cut.slice_bytes, cut.window});
}

double PricedSchedule::bound(size_t bytes) const {
  return model_.least_wire_seconds() * static_cast<double>(bytes);
}

Prediction PricedSchedule::simulate(size_t bytes, const Cut& cut, int max_slices) {
  const SimulatedCall call{bytes, cut.slice_bytes, cut.window, max_slices};
  if (ops() > kManyOps) {
    if (std::optional<Prediction> prediction = simulate_some(call)) return *std::move(prediction);
  }
  if (!simulator_) {
    plans_ = schedule_->project_all();
    simulator_.emplace(plans_, site_.fabric, coding_);
  }
  return simulator_->run(call);
}

double PricedSchedule::simulate_after_silence(size_t bytes, const Cut& cut) {
  SimulatedCall silent{bytes, cut.slice_bytes, cut.window};
  silent.after_silence = true;
  if (simulator_) return simulator_->run(silent).seconds_after_pause;
  if (!some_ || ops_of_some() * kSlicesAfterSilence > kMostOpsAfterSilence) return 0;
  const auto prediction = some_->run_symmetric(silent);
  return prediction ? prediction->seconds_after_pause : 0;
}

std::optional<Prediction> PricedSchedule::simulate_some(const SimulatedCall& call) {
  if (!std::exchange(has_looked_for_some_, true)) {
    if (const auto symmetry = Symmetry::find(site_, schedule_->turn())) {
      for (size_t rank = 0; rank < symmetry->num_ranks(); ++rank) {
        some_plans_.push_back(schedule_->project(static_cast<int>(rank)));
      }
      some_.emplace(some_plans_, site_.fabric, coding_, *symmetry);
    }
  }
  return some_ ? some_->run_symmetric(call) : std::nullopt;
}

double PricedSchedule::ops() const {
  return kOpsPerMessage * model_.messages();
}

double PricedSchedule::ops_of_some() const {
  return ops() * static_cast<double>(some_plans_.size()) / schedule_->world_size();
}

double PricedSchedule::making() const {
  if (simulator_) return 0;
  return ops() * (schedule_->edges() == Edges::kNone ? kMaking : kMakingCoded);
}

bool PricedSchedule::floods(const Cut& cut, double ratio) const {
  const double in_flight = static_cast<double>(cut.part_bytes) * cut.window * ratio;
  return in_flight > kQueueSeconds * model_.incast_rate();
}

}  // namespace q7x2
