#include "plan/choose/schedule_search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "fabric/measurements.h"
#include "fabric/scatter.h"

namespace q7x2 {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

/// The lengths of parts that are tried. Longer parts do not use a link better, and leave the cache
/// between their arrival and their reduction. Shorter parts start the next step earlier.
constexpr std::array kHostParts = {256 * kKiB, 64 * kKiB, 16 * kKiB};
constexpr std::array kNetworkParts = {512 * kKiB, 128 * kKiB, 32 * kKiB};
/// A coded message should not be so short that sending it costs more than its content. Lengths from
/// above whose messages would have fewer bytes than this are not tried.
constexpr double kLeastMessageBytes = 16 * kKiB;
/// If messages have less than this share of their parts' bytes, kSparseParts is tried instead.
constexpr double kFewBytes = 1.0 / 50;
constexpr std::array kSparseParts = {2 * kMiB, 512 * kKiB};
/// The number of slices in progress, and a second number that the best candidate is tried with.
constexpr int kWindow = 4;
constexpr int kWideWindow = 8;
/// A wide window must reduce the time to this share. It uses twice the memory, whose effect on
/// caches is not in the model.
constexpr double kWorthMoreMemory = 0.98;
/// Shorter parts must reduce the estimated time to this share, because they need more messages.
constexpr double kWorthMoreMessages = 0.97;
/// Estimates of the model are nearly always off by less than this factor. So a candidate whose
/// estimate is more than this many times the best one is not simulated.
constexpr double kHopeless = 2;
/// The same between far hosts. There, nearly all of the time is latency, and the estimate uses the
/// largest latency of all ranks in each round.
constexpr double kHopelessBetweenFar = 4;
/// A large candidate is not simulated if its busiest wire alone takes more than this many times the
/// time of the best simulated one.
constexpr double kWorthALook = 1.01;
/// The number of slices that each candidate is simulated for, and the best ones, into their steady
/// state.
constexpr int kFirstLook = 2;
constexpr int kSteadyState = 3 * kWindow;
/// Between far hosts the first slices say little about the later ones. So if a simulation into the
/// steady state takes at most this share of all simulations, each candidate gets one.
constexpr double kShareOfFar = 1.0 / 8;
constexpr size_t kFinalists = 3;
/// A Schedule with more ops, of all ranks together, is simulated for one slice only, if at all.
constexpr double kManyOps = 100e3;
/// The assumed size of an uneven call: its parts may well be long.
constexpr size_t kUnevenBytes = kMiB;
/// Measured times count for size classes that are up to this many times as long or short.
constexpr double kTunedReach = 4;

double largest_alpha(const Site& site) {
  std::vector<int> ranks(static_cast<size_t>(site.fabric.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return site.routes.largest_alpha(ranks);
}

/// Times on a grid of 0.1 %. Times that differ by less count as equal.
double rounded_time(double seconds) {
  return std::floor(std::log(std::max(seconds, 1e-12)) * 1000);
}

bool is_faster(const Prediction& a, const Prediction& b) {
  const auto order = [](const Prediction& prediction) {
    return std::pair(rounded_time(prediction.seconds), prediction.seconds_after_pause);
  };
  return order(a) < order(b);
}

/// Estimates are corrected by the ratio of simulated to estimated times before they are compared
/// with simulated times.
void correct_estimates(std::vector<Rating>& ratings, const std::vector<double>& ratios) {
  if (ratios.empty()) return;
  const double correction = median(ratios);
  for (Rating& rating : ratings) {
    if (!rating.is_simulated) rating.correct(correction);
  }
}

/// The size with which a call is simulated.
size_t typical_bytes(const CallShape& shape) {
  return shape.bytes == CallShape::kUneven ? kUnevenBytes : size_class(shape.bytes);
}

}  // namespace

// Above half of the address space there is no next power of two. Such buffers do not exist either.
size_t size_class(size_t bytes) {
  return bytes > CallShape::kUneven / 2 ? bytes : std::bit_ceil(bytes);
}

void Rating::correct(double factor) {
  correction = factor;
  const double least = prediction.bottleneck < 0
                           ? 0
                           : prediction.loads[static_cast<size_t>(prediction.bottleneck)].busy;
  prediction.seconds = std::max(prediction.seconds * factor, least);
  prediction.seconds_after_pause *= factor;
  prediction.first_slice_seconds *= factor;
}

void sort_ratings(std::vector<Rating>& ratings) {
  std::ranges::stable_sort(ratings, {}, [](const Rating& rating) {
    const double tie = rating.measured.value_or(rating.prediction.seconds_after_pause);
    return std::tuple(!rating.measured, rounded_time(rating.seconds()), tie);
  });
}

ScheduleSearch::ScheduleSearch(const CallShape& shape, const Site& site,
                               const std::vector<AlgorithmName>& wishes, FindSchedule find_schedule,
                               std::shared_ptr<const Schedule> own)
    : shape_(shape),
      site_(site),
      find_schedule_(std::move(find_schedule)),
      bytes_(typical_bytes(shape)),
      coding_(shape.coding ? shape.coding(site.fabric) : CodingCost{}),
      is_far_(is_far(2 * largest_alpha(site))),
      edges_(shape.codec.empty()
                 ? std::vector{EdgeCoding(Edges::kNone, site.fabric.world_size(), &site.fabric)}
                 : edge_codings(shape.edges, site.fabric.world_size(), &site.fabric)) {
  if (own) {
    variants_.push_back(
        {.generator = nullptr, .parameter = 0, .edges = edges_[0], .own = std::move(own)});
    return;
  }
  find_variants(wishes);
  if (variants_.empty()) find_variants({});
  if (variants_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("no algorithm offers ") + to_string(shape.collective) + " for " +
                    std::to_string(site.fabric.world_size()) + " ranks" +
                    (shape.wide_accumulation ? " with one rounding" : "") +
                    (shape.codec.empty() ? "" : " with codec " + shape.codec));
  }
}

double ScheduleSearch::ratio(const PricedSchedule& schedule) const {
  return schedule.schedule().edges() == Edges::kNone ? 1 : coding_.of(1).ratio;
}

std::span<const size_t> ScheduleSearch::parts(const PricedSchedule& schedule) const {
  if (site_.fabric.one_host()) return kHostParts;
  if (is_sparse(schedule)) return kSparseParts;
  const double ratio = this->ratio(schedule);
  size_t count = kNetworkParts.size();
  while (count > 1 && static_cast<double>(kNetworkParts[count - 1]) * ratio < kLeastMessageBytes) {
    --count;
  }
  return std::span(kNetworkParts).first(count);
}

bool ScheduleSearch::floods(const PricedSchedule& schedule, const Cut& cut) const {
  return !is_sparse(schedule) && schedule.floods(cut, ratio(schedule));
}

bool ScheduleSearch::is_sparse(const PricedSchedule& schedule) const {
  return ratio(schedule) < kFewBytes;
}

std::vector<Cut> ScheduleSearch::cuts(const PricedSchedule& schedule) const {
  std::vector<Cut> cuts;
  const std::span<const size_t> parts = this->parts(schedule);
  for (const size_t part : parts) {
    const Cut cut = schedule.cut(bytes_, part, kWindow);
    if (part != parts.back() && floods(schedule, cut)) continue;
    if (!cuts.empty() && cut.slice_bytes == cuts.back().slice_bytes) continue;
    cuts.push_back(cut);
  }
  return cuts;
}

std::vector<Rating> ScheduleSearch::measured() {
  std::vector<Rating> ratings;
  if (shape_.bytes == CallShape::kUneven || !shape_.codec.empty()) return ratings;
  const std::vector<Fabric::Tuned> times = nearest_times();
  for (Variant& variant : variants_) {
    // The Fabric has no times of user-defined Schedules.
    if (variant.generator == nullptr) continue;
    for (const Fabric::Tuned& time : times) {
      if (time.algorithm != variant.generator->full_name(variant.parameter)) continue;
      PricedSchedule& schedule = price(variant);
      const Cut cut = schedule.in_slices(bytes_, time.slice_bytes, time.window);
      Prediction prediction = schedule.estimate_loads(bytes_, cut);
      double seconds = time.seconds;
      if (time.bytes != bytes_) {
        // The measured time of the other size, scaled by the model's ratio of the two sizes.
        const Cut then = schedule.in_slices(time.bytes, time.slice_bytes, time.window);
        seconds *= prediction.seconds / schedule.estimate(time.bytes, then);
      }
      ratings.push_back({variant.priced, cut, std::move(prediction), false, seconds});
    }
  }
  sort_ratings(ratings);
  return ratings;
}

std::vector<Rating> ScheduleSearch::predicted(double max_ops) {
  std::vector<std::vector<Rating>> by_coding;
  double best = std::numeric_limits<double>::infinity();
  for (const EdgeCoding& edges : edges_) {
    std::vector<Rating> ratings = estimated(edges);
    if (ratings.empty()) continue;
    best = std::min(best, ratings.front().seconds());
    by_coding.push_back(std::move(ratings));
  }
  std::vector<Rating> all;
  for (std::vector<Rating>& ratings : by_coding) {
    if (ratings.front().seconds() <= kHopeless * best) simulate(ratings, max_ops);
    std::ranges::move(ratings, std::back_inserter(all));
  }
  sort_ratings(all);
  prefer_less_loss(all);
  return all;
}

void ScheduleSearch::prefer_less_loss(std::vector<Rating>& ratings) const {
  if (shape_.codec.empty() || shape_.edges != EdgeWish::kAuto) return;
  const double near = kWorthMoreLoss * ratings.front().seconds();
  auto best = ratings.begin();
  for (auto each = best; each != ratings.end(); ++each) {
    if (each->seconds() <= near &&
        each->priced->schedule().edges() < best->priced->schedule().edges()) {
      best = each;
    }
  }
  std::rotate(ratings.begin(), best, best + 1);
}

std::vector<Rating> ScheduleSearch::estimated(const EdgeCoding& edges) {
  std::vector<Rating> ratings;
  for (Variant& variant : variants_) {
    if (variant.edges.edges() != edges.edges()) continue;
    PricedSchedule& schedule = price(variant);
    std::optional<Cut> best;
    double seconds = std::numeric_limits<double>::infinity();
    for (const Cut& cut : cuts(schedule)) {
      const double time = schedule.estimate(bytes_, cut);
      if (time >= seconds * kWorthMoreMessages) continue;
      seconds = time;
      best = cut;
    }
    ratings.push_back({variant.priced, *best, schedule.estimate_loads(bytes_, *best)});
  }
  sort_ratings(ratings);
  return ratings;
}

void ScheduleSearch::simulate(std::vector<Rating>& ratings, double max_ops) const {
  max_ops = simulate_first_slices(ratings, max_ops);
  sort_ratings(ratings);
  for (Rating& rating : std::span(ratings).first(std::min(kFinalists, ratings.size()))) {
    const double price = rating.priced->ops() * kSteadyState;
    if (!rating.is_simulated || price > max_ops || rating.priced->ops() > kManyOps) continue;
    max_ops -= price;
    rating.prediction = rating.priced->simulate(bytes_, rating.cut, 0);
  }
  sort_ratings(ratings);
  const size_t wide = is_far_ ? kFinalists : 1;
  for (size_t i = 0; i < std::min(wide, ratings.size()); ++i) try_wide_window(ratings[i], max_ops);
  if (is_far_) sort_ratings(ratings);
}

double ScheduleSearch::simulate_first_slices(std::vector<Rating>& ratings, double max_ops) const {
  const double hopeless =
      (is_far_ ? kHopelessBetweenFar : kHopeless) * ratings.front().prediction.seconds;
  std::vector<double> ratios;  // ratios of simulated to estimated times
  std::vector<Rating*> beaten;
  double best = std::numeric_limits<double>::infinity();
  for (Rating& rating : ratings) {
    const std::vector<Run> runs = this->runs(rating, max_ops);
    double price = rating.priced->making();
    for (const Run& run : runs) price += rating.priced->ops() * run.slices;
    if (price > max_ops || rating.prediction.seconds > hopeless) break;
    if (rating.priced->ops() > kManyOps && rating.priced->bound(bytes_) > best * kWorthALook) {
      beaten.push_back(&rating);
      continue;
    }
    max_ops -= price;
    const double estimate = rating.prediction.seconds;
    for (const Run& run : runs) {
      Prediction prediction = rating.priced->simulate(bytes_, run.cut, run.slices);
      if (rating.is_simulated && !is_faster(prediction, rating.prediction)) continue;
      rating.cut = run.cut;
      rating.prediction = std::move(prediction);
      rating.is_simulated = true;
    }
    best = std::min(best, rating.prediction.seconds);
    if (estimate > 0) ratios.push_back(rating.prediction.seconds / estimate);
  }
  correct_estimates(ratings, ratios);
  for (Rating* const rating : beaten) {
    const double so_far = rating->correction;
    const double more = rating->priced->bound(bytes_) / rating->prediction.seconds;
    if (more <= 1) continue;
    rating->correct(more);
    rating->correction = so_far * more;
  }
  return max_ops;
}

std::vector<ScheduleSearch::Run> ScheduleSearch::runs(const Rating& rating, double max_ops) const {
  if (rating.priced->ops() > kManyOps) return {{rating.cut, 1}};
  const std::vector<Cut> cuts = this->cuts(*rating.priced);
  const double steady = rating.priced->ops() * kSteadyState * static_cast<double>(cuts.size());
  const int look = is_far_ && steady <= kShareOfFar * max_ops ? kSteadyState : kFirstLook;
  std::vector<Run> runs;
  for (const Cut& cut : cuts) {
    // A call that fits in one window has no steady state.
    const size_t all = (bytes_ + cut.slice_bytes - 1) / cut.slice_bytes;
    const bool is_short = all <= static_cast<size_t>(cut.window);
    runs.push_back({cut, is_short ? std::max(static_cast<int>(all), 1) : look});
  }
  return runs;
}

void ScheduleSearch::try_wide_window(Rating& rating, double max_ops) const {
  PricedSchedule& schedule = *rating.priced;
  if (rating.cut.window < kWindow || is_sparse(schedule)) return;
  const Cut wide = schedule.cut(bytes_, rating.cut.part_bytes, kWideWindow);
  if (floods(schedule, wide)) return;
  Prediction prediction;
  if (!rating.is_simulated) {
    Rating estimate{rating.priced, wide, schedule.estimate_loads(bytes_, wide)};
    estimate.correct(rating.correction);
    prediction = std::move(estimate.prediction);
  } else if (schedule.ops() * kSteadyState * 2 <= max_ops && schedule.ops() <= kManyOps) {
    prediction = schedule.simulate(bytes_, wide, 0);
  } else {
    return;
  }
  if (prediction.seconds < rating.prediction.seconds * kWorthMoreMemory) {
    rating.cut = wide;
    rating.prediction = std::move(prediction);
  }
}

void ScheduleSearch::resize(Rating& rating) const {
  if (shape_.bytes == CallShape::kUneven || shape_.bytes == 0 || shape_.bytes == bytes_) return;
  PricedSchedule& schedule = *rating.priced;
  const double before = rating.prediction.seconds;
  const Cut cut = schedule.in_slices(shape_.bytes, rating.cut.slice_bytes, rating.cut.window);
  const int slices = schedule.ops() > kManyOps ? 1 : 0;
  rating.prediction = rating.is_simulated ? schedule.simulate(shape_.bytes, cut, slices)
                                          : schedule.estimate_loads(shape_.bytes, cut);
  if (!rating.is_simulated) rating.correct(rating.correction);
  if (rating.measured) *rating.measured *= rating.prediction.seconds / before;
}

// The measured times of the nearest size; if two are equally near, of the smaller one.
std::vector<Fabric::Tuned> ScheduleSearch::nearest_times() const {
  std::vector<Fabric::Tuned> nearest;
  double least = kTunedReach;
  for (const Fabric::Tuned& time : site_.fabric.tuned) {
    if (time.collective != shape_.collective || time.ranks != site_.fabric.world_size() ||
        time.bytes == 0 || bytes_ == 0) {
      continue;
    }
    const auto a = static_cast<double>(time.bytes);
    const auto b = static_cast<double>(bytes_);
    const double factor = std::max(a / b, b / a);
    if (factor > least) continue;
    if (!nearest.empty() && (factor < least || time.bytes < nearest.front().bytes)) {
      nearest.clear();
    }
    if (nearest.empty() || time.bytes == nearest.front().bytes) nearest.push_back(time);
    least = factor;
  }
  return nearest;
}

}  // namespace q7x2
