#include "plan/contest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "fabric/scatter.h"
#include "plan/coding_pass.h"

namespace q7x2 {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

/// The longest parts that are tried. Longer ones do not use a link better, and leave the cache
/// between their arrival and their fold; shorter ones start the next step earlier.
constexpr std::array kHostParts = {256 * kKiB, 64 * kKiB, 16 * kKiB};
constexpr std::array kNetworkParts = {512 * kKiB, 128 * kKiB, 32 * kKiB};
/// Coded messages shall not be so short that sending them costs more than what they hold: of the
/// parts above, those are left out whose messages would hold fewer bytes,
constexpr double kLeastMessageBytes = 16 * kKiB;
/// and for calls whose messages hold less than that share of their parts' bytes there are others.
constexpr double kFewBytes = 1.0 / 50;
constexpr std::array kSparseParts = {2 * kMiB, 512 * kKiB};
/// Slices in progress, and what the best candidate is tried with besides.
constexpr int kWindow = 4;
constexpr int kWideWindow = 8;
/// The share of the time that a wide window must leave: it touches twice the memory, which caches
/// feel and the model does not.
constexpr double kWorthMoreMemory = 0.98;
/// And the share that parts leave that are shorter, by the model's estimate: they take more
/// messages.
constexpr double kWorthMoreMessages = 0.97;
/// The estimates of the model are that far off at most, nearly always: whoever is estimated to take
/// longer than so many times the best one is not simulated.
constexpr double kHopeless = 2;
/// Candidates are simulated for some slices, and the best into their steady state.
constexpr int kFirstLook = 2;
constexpr int kSteadyState = 3 * kWindow;
constexpr size_t kFinalists = 3;
/// Schedules of more ops, of all ranks together, are simulated once, for one slice, if at all.
constexpr double kManyOps = 100e3;
/// What an uneven call is taken for: its parts may well be long.
constexpr size_t kUnevenBytes = kMiB;
/// Measured times speak for size classes up to so many times as long or short.
constexpr double kTunedReach = 4;

/// On a grid of a tenth of a per cent: what differs by less is equal.
double rounded_time(double seconds) {
  return std::floor(std::log(std::max(seconds, 1e-12)) * 1000);
}

bool is_faster(const Prediction& a, const Prediction& b) {
  const auto order = [](const Prediction& prediction) {
    return std::pair(rounded_time(prediction.seconds), prediction.seconds_after_pause);
  };
  return order(a) < order(b);
}

/// An estimate is compared with simulated times only after what they have shown of estimates.
void correct_estimates(std::vector<Standing>& standings, const std::vector<double>& ratios) {
  if (ratios.empty()) return;
  const double correction = median(ratios);
  for (Standing& standing : standings) {
    if (!standing.is_simulated) standing.correct(correction);
  }
}

/// What a call is simulated with.
size_t typical_bytes(const CallShape& shape) {
  return shape.bytes == CallShape::kUneven ? kUnevenBytes : size_class(shape.bytes);
}

}  // namespace

// Beyond half of the address space the next power of two does not exist, nor does such a buffer.
size_t size_class(size_t bytes) {
  return bytes > CallShape::kUneven / 2 ? bytes : std::bit_ceil(bytes);
}

void sort_standings(std::vector<Standing>& standings) {
  std::ranges::stable_sort(standings, {}, [](const Standing& standing) {
    const double tie = standing.measured.value_or(standing.prediction.seconds_after_pause);
    return std::tuple(!standing.measured, rounded_time(standing.seconds()), tie);
  });
}

Contest::Contest(const CallShape& shape, const Site& site, const std::vector<AlgorithmName>& wishes,
                 FindSchedule find_schedule, std::shared_ptr<const Schedule> own)
    : shape_(shape),
      site_(site),
      find_schedule_(std::move(find_schedule)),
      bytes_(typical_bytes(shape)),
      coding_(shape.coding ? shape.coding(site.fabric) : CodingCost{}),
      edges_(shape.codec.empty()
                 ? std::vector{EdgeCoding(Edges::kNone, site.fabric.world_size(), &site.fabric)}
                 : edge_codings(shape.edges, site.fabric.world_size(), &site.fabric)) {
  if (own) {
    entrants_.push_back(
        {.generator = nullptr, .parameter = 0, .edges = edges_[0], .own = std::move(own)});
    return;
  }
  find_entrants(wishes);
  if (entrants_.empty()) find_entrants({});
  if (entrants_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("no algorithm offers ") + to_string(shape.collective) + " for " +
                    std::to_string(site.fabric.world_size()) + " ranks" +
                    (shape.wide_accumulation ? " with one rounding" : "") +
                    (shape.codec.empty() ? "" : " with codec " + shape.codec));
  }
}

void Contest::find_entrants(const std::vector<AlgorithmName>& wishes) {
  const ScheduleRequest request{shape_.collective, site_.fabric.world_size(), shape_.root,
                                &site_.fabric};
  for (const Generator& generator : generators()) {
    if (!generator.applies(request)) continue;
    const std::vector<int> parameters =
        generator.parameters == nullptr ? std::vector{0} : generator.parameters(request);
    for (const AlgorithmName& wish : wishes) check_parameter(wish, generator, parameters);
    for (const int parameter : parameters) {
      const bool wished =
          wishes.empty() || std::ranges::any_of(wishes, [&](const AlgorithmName& wish) {
            return wish.matches(generator.name, parameter);
          });
      if (!wished) continue;
      for (const EdgeCoding& edges : edges_) {
        Entrant entrant{.generator = &generator, .parameter = parameter, .edges = edges};
        if (may_enter(entrant)) entrants_.push_back(std::move(entrant));
      }
    }
  }
}

ScheduleRequest Contest::request_of(const Entrant& entrant) const {
  ScheduleRequest request{shape_.collective, site_.fabric.world_size(), shape_.root, &site_.fabric,
                          entrant.parameter};
  request.wants_owners = entrant.edges.any();
  return request;
}

bool Contest::may_enter(const Entrant& entrant) const {
  const Generator& generator = *entrant.generator;
  if (!entrant.edges.any()) {
    return !shape_.wide_accumulation || !is_reduction(shape_.collective) || generator.rounds_once;
  }
  if (!generator.may_code(entrant.edges)) return false;
  const auto schedule = find_schedule_(generator, request_of(entrant));
  if (shape_.sums_by_owners && shape_.collective == Collective::kAllReduce &&
      !codes_results(*schedule, entrant.edges)) {
    return false;
  }
  return shape_.exact_sums || encodings_on_the_way(*schedule, entrant.edges) <= 1;
}

void Contest::check_parameter(const AlgorithmName& wish, const Generator& generator,
                              const std::vector<int>& parameters) const {
  if (wish.name != generator.name || !wish.parameter ||
      std::count(parameters.begin(), parameters.end(), *wish.parameter) > 0) {
    return;
  }
  std::string message = "invalid algorithm '" + generator.full_name(*wish.parameter) + "' for " +
                        to_string(shape_.collective) + " by " +
                        std::to_string(site_.fabric.world_size()) + " ranks: expected ";
  const char* separator = "";
  for (const int parameter : parameters) {
    message.append(std::exchange(separator, ", ")).append(generator.full_name(parameter));
  }
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::string Contest::name_of(const Entrant& entrant) {
  return entrant.own ? entrant.own->algorithm() : entrant.generator->full_name(entrant.parameter);
}

std::shared_ptr<const Schedule> Contest::schedule_of(const Entrant& entrant) const {
  if (entrant.own) return entrant.own;
  auto schedule = find_schedule_(*entrant.generator, request_of(entrant));
  if (shape_.codec.empty()) return schedule;
  return std::make_shared<const Schedule>(code(*schedule, entrant.edges));
}

std::shared_ptr<const Schedule> Contest::schedule(const std::string& algorithm, Edges edges) const {
  for (const Entrant& entrant : entrants_) {
    if (name_of(entrant) == algorithm && entrant.edges.edges() == edges) {
      return schedule_of(entrant);
    }
  }
  return nullptr;
}

Contender& Contest::enter(Entrant& entrant) {
  if (!entrant.contender) {
    entrant.contender = std::make_shared<Contender>(schedule_of(entrant), site_, coding_,
                                                    shape_.bytes == CallShape::kUneven);
  }
  return *entrant.contender;
}

double Contest::ratio(const Contender& contender) const {
  return contender.schedule().edges() == Edges::kNone ? 1 : coding_.of(1).ratio;
}

std::span<const size_t> Contest::parts(const Contender& contender) const {
  if (site_.fabric.one_host()) return kHostParts;
  if (is_sparse(contender)) return kSparseParts;
  const double ratio = this->ratio(contender);
  size_t count = kNetworkParts.size();
  while (count > 1 && static_cast<double>(kNetworkParts[count - 1]) * ratio < kLeastMessageBytes) {
    --count;
  }
  return std::span(kNetworkParts).first(count);
}

bool Contest::floods(const Contender& contender, const Cut& cut) const {
  return !is_sparse(contender) && contender.floods(cut, ratio(contender));
}

bool Contest::is_sparse(const Contender& contender) const {
  return ratio(contender) < kFewBytes;
}

std::vector<Cut> Contest::cuts(const Contender& contender) const {
  std::vector<Cut> cuts;
  const std::span<const size_t> parts = this->parts(contender);
  for (const size_t part : parts) {
    const Cut cut = contender.cut(bytes_, part, kWindow);
    if (part != parts.back() && floods(contender, cut)) continue;
    if (!cuts.empty() && cut.slice_bytes == cuts.back().slice_bytes) continue;
    cuts.push_back(cut);
  }
  return cuts;
}

std::vector<Standing> Contest::measured() {
  std::vector<Standing> standings;
  if (shape_.bytes == CallShape::kUneven || !shape_.codec.empty()) return standings;
  const std::vector<Fabric::Tuned> times = nearest_times();
  for (Entrant& entrant : entrants_) {
    if (entrant.generator == nullptr) continue;  // times are not of its file
    for (const Fabric::Tuned& time : times) {
      if (time.algorithm != entrant.generator->full_name(entrant.parameter)) continue;
      Contender& contender = enter(entrant);
      const Cut cut = contender.in_slices(bytes_, time.slice_bytes, time.window);
      Prediction prediction = contender.estimate_loads(bytes_, cut);
      double seconds = time.seconds;
      if (time.bytes != bytes_) {
        // The other size's time, changed as the model says that it changes with the size.
        const Cut then = contender.in_slices(time.bytes, time.slice_bytes, time.window);
        seconds *= prediction.seconds / contender.estimate(time.bytes, then);
      }
      standings.push_back({entrant.contender, cut, std::move(prediction), false, seconds});
    }
  }
  sort_standings(standings);
  return standings;
}

std::vector<Standing> Contest::predicted(double max_ops) {
  std::vector<Standing> standings;
  for (Entrant& entrant : entrants_) {
    Contender& contender = enter(entrant);
    std::optional<Cut> best;
    double seconds = std::numeric_limits<double>::infinity();
    for (const Cut& cut : cuts(contender)) {
      const double time = contender.estimate(bytes_, cut);
      if (time >= seconds * kWorthMoreMessages) continue;
      seconds = time;
      best = cut;
    }
    standings.push_back({entrant.contender, *best, contender.estimate_loads(bytes_, *best)});
  }
  sort_standings(standings);
  simulate(standings, max_ops);
  return standings;
}

void Contest::simulate(std::vector<Standing>& standings, double max_ops) const {
  const double hopeless = kHopeless * standings.front().prediction.seconds;
  std::vector<double> ratios;  // of simulated times to estimates
  for (Standing& standing : standings) {
    const bool is_large = standing.contender->ops() > kManyOps;
    const std::vector<Cut> ways = is_large ? std::vector{standing.cut} : cuts(*standing.contender);
    const int slices = is_large ? 1 : kFirstLook;
    const double price = standing.contender->ops() * slices * static_cast<double>(ways.size()) +
                         standing.contender->making();
    if (price > max_ops || standing.prediction.seconds > hopeless) break;
    max_ops -= price;
    const double estimate = standing.prediction.seconds;
    for (const Cut& cut : ways) {
      Prediction prediction = standing.contender->simulate(bytes_, cut, slices);
      if (standing.is_simulated && !is_faster(prediction, standing.prediction)) continue;
      standing.cut = cut;
      standing.prediction = std::move(prediction);
      standing.is_simulated = true;
    }
    if (estimate > 0) ratios.push_back(standing.prediction.seconds / estimate);
  }
  correct_estimates(standings, ratios);
  sort_standings(standings);
  for (size_t i = 0; i < std::min(kFinalists, standings.size()); ++i) {
    Standing& standing = standings[i];
    const double price = standing.contender->ops() * kSteadyState;
    if (!standing.is_simulated || price > max_ops || standing.contender->ops() > kManyOps) continue;
    max_ops -= price;
    standing.prediction = standing.contender->simulate(bytes_, standing.cut, 0);
  }
  sort_standings(standings);
  try_wide_window(standings.front(), max_ops);
}

void Contest::try_wide_window(Standing& standing, double max_ops) const {
  Contender& contender = *standing.contender;
  if (standing.cut.window < kWindow || is_sparse(contender)) return;
  const Cut wide = contender.cut(bytes_, standing.cut.part_bytes, kWideWindow);
  if (floods(contender, wide)) return;
  Prediction prediction;
  if (!standing.is_simulated) {
    prediction = contender.estimate_loads(bytes_, wide);
    prediction.seconds *= standing.correction;
  } else if (contender.ops() * kSteadyState * 2 <= max_ops && contender.ops() <= kManyOps) {
    prediction = contender.simulate(bytes_, wide, 0);
  } else {
    return;
  }
  if (prediction.seconds < standing.prediction.seconds * kWorthMoreMemory) {
    standing.cut = wide;
    standing.prediction = std::move(prediction);
  }
}

void Contest::resize(Standing& standing) const {
  if (shape_.bytes == CallShape::kUneven || shape_.bytes == 0 || shape_.bytes == bytes_) return;
  Contender& contender = *standing.contender;
  const double before = standing.prediction.seconds;
  const Cut cut = contender.in_slices(shape_.bytes, standing.cut.slice_bytes, standing.cut.window);
  const int slices = contender.ops() > kManyOps ? 1 : 0;
  standing.prediction = standing.is_simulated ? contender.simulate(shape_.bytes, cut, slices)
                                              : contender.estimate_loads(shape_.bytes, cut);
  if (!standing.is_simulated) standing.correct(standing.correction);
  if (standing.measured) *standing.measured *= standing.prediction.seconds / before;
}

// The measured times of the nearest size, the smaller one of two.
std::vector<Fabric::Tuned> Contest::nearest_times() const {
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
