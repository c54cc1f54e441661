#include "plan/planner.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "plan/generators.h"
#ifndef NDEBUG
#include "plan/checker.h"
#endif

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
/// Where several hosts send to one NIC, what is on its way should not be more than the NIC receives
/// in that time: queues are about as long, and what they cannot hold is sent again.
constexpr double kQueueSeconds = 0.02;
/// Slices in progress, and what the best candidate is tried with besides.
constexpr int kWindow = 4;
constexpr int kWideWindow = 8;
/// The share of the time that a wide window must leave: it touches twice the memory, which caches
/// feel and the model does not.
constexpr double kWorthMoreMemory = 0.98;
/// Every candidate is looked at for some slices, and the best into their steady state.
constexpr int kFirstLook = 2;
constexpr size_t kFinalists = 3;
/// Plans that have more ops, those of all ranks together, are simulated once, for one slice.
constexpr size_t kManyOps = 5000;
/// All scratch blocks of all slices in progress together.
constexpr size_t kMaxScratchBytes = 32 * kMiB;
/// What all slices in progress put into shared memory. Two of the largest calls fit.
constexpr size_t kMaxStagedBytes = 8 * kMiB;
/// What an uneven call is taken for: its parts may well be long.
constexpr size_t kUnevenBytes = kMiB;
constexpr size_t kAlignment = 64;
/// Of calls with a codec: all parts but the last ones hold whole groups of elements that share a
/// scale, up to 1024 of 4 bytes.
constexpr size_t kCodedAlignment = 4096;
/// Measured times speak for size classes up to so many times as long or short.
constexpr double kTunedReach = 4;
#ifndef NDEBUG
constexpr size_t kMaxCheckedRanks = 32;
#endif

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

size_t divide_up(size_t value, size_t divisor) {
  return (value + divisor - 1) / divisor;
}

/// Beyond half of the address space the next power of two does not exist, nor does such a buffer.
size_t size_class(size_t bytes) {
  return bytes > CallShape::kUneven / 2 ? bytes : std::bit_ceil(bytes);
}

/// What a call is simulated with.
size_t typical_bytes(const CallShape& shape) {
  return shape.bytes == CallShape::kUneven ? kUnevenBytes : size_class(shape.bytes);
}

/// How the data is cut; see Choice.
struct Cut {
  size_t slice_bytes;
  size_t part_bytes;
  int window;
};

/// Stages that a rank of the same host receives: these take shared memory.
size_t shared_stages(const Plan& plan, const Fabric& fabric) {
  std::vector<bool> shared(plan.num_stages);
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::kSend && fabric.same_host(plan.rank, op.peer)) shared[op.stage] = true;
  }
  return static_cast<size_t>(std::count(shared.begin(), shared.end(), true));
}

/// One algorithm with the Plans of all ranks.
class Contender {
 public:
  Contender(const Generator& generator, int parameter, const CallShape& shape, const Fabric& fabric)
      : name_(generator.full_name(parameter)),
        uneven_(shape.bytes == CallShape::kUneven),
        alignment_(shape.codec.empty() ? kAlignment : kCodedAlignment) {
    PlanRequest request{shape.collective, 0, fabric.world_size(), shape.root, &fabric, parameter};
    for (; request.rank < request.world_size; ++request.rank) {
      plans_.push_back(generator.generate(request));
      num_ops_ += plans_.back().ops.size();
      const Plan& plan = plans_.back();
      scratch_ = std::max<size_t>(scratch_, size_t{plan.num_scratch} + plan.num_coded);
      stages_ = std::max(stages_, shared_stages(plan, fabric));
    }
    const std::vector<uint32_t>& weights = plans_[0].part_weights;
    if (!weights.empty()) {
      total_weight_ = std::accumulate(weights.begin(), weights.end(), size_t{0});
      heaviest_ = *std::max_element(weights.begin(), weights.end());
    }
    simulator_.emplace(plans_, fabric, shape.coding);
  }

  const std::string& name() const { return name_; }
  const std::vector<Plan>& plans() const { return plans_; }
  bool has_many_ops() const { return num_ops_ > kManyOps; }

  /// Into parts of at most `part_bytes`, less where memory says so.
  Cut cut(size_t bytes, size_t part_bytes, int window) const {
    const size_t allowed = std::max<size_t>(std::min(part_bytes, longest_part(window)), 1);
    const size_t longest = uneven_ ? allowed : divide_up(bytes, total_weight_) * heaviest_;
    // Slices of one length, not many long ones and a rest.
    const size_t slices = std::max<size_t>(divide_up(longest, allowed), 1);
    return in_slices(bytes, divide_up(longest, slices) / heaviest_ * total_weight_, window);
  }

  /// Into slices of `slice_bytes`, or the next longer ones that are possible; shorter ones where
  /// memory says so.
  Cut in_slices(size_t bytes, size_t slice_bytes, int window) const {
    window = std::clamp(window, 1, Choice::kMaxWindow);
    const size_t longest_unit =
        std::max(longest_part(window) / heaviest_ / alignment_ * alignment_, alignment_);
    const size_t wished = std::min(slice_bytes, longest_unit * total_weight_);
    const size_t unit = round_up(std::max<size_t>(divide_up(wished, total_weight_), 1), alignment_);
    const size_t slice = unit * total_weight_;
    const size_t useful = uneven_
                              ? Choice::kMaxWindow
                              : std::clamp<size_t>(divide_up(bytes, slice), 1, Choice::kMaxWindow);
    return {slice, unit * heaviest_, std::min(window, static_cast<int>(useful))};
  }

  /// `max_slices`: see SimulatedCall.
  Prediction predict(size_t bytes, const Cut& cut, int max_slices) const {
    return simulator_->run({bytes, cut.slice_bytes, cut.window, max_slices});
  }

  /// Whether the window of slices is more than the queue holds of a NIC to which several hosts
  /// send. `ratio`: bytes of a message for a byte of its part.
  bool floods(const Cut& cut, double ratio) const {
    const double in_flight = static_cast<double>(cut.part_bytes) * cut.window * ratio;
    return in_flight > kQueueSeconds * simulator_->incast_rate();
  }

  double bound(size_t bytes, const Cut& cut) const {
    return simulator_->bound({bytes, cut.slice_bytes, cut.window});
  }

 private:
  /// With which the scratch blocks and the staged messages of `window` slices fit their memory.
  size_t longest_part(int window) const {
    const auto slices = static_cast<size_t>(window);
    return std::min(kMaxScratchBytes / (scratch_ * slices), kMaxStagedBytes / (stages_ * slices));
  }

  std::string name_;
  bool uneven_;
  size_t alignment_;
  std::vector<Plan> plans_;
  size_t num_ops_ = 0;
  size_t scratch_ = 1;
  size_t stages_ = 1;
  size_t total_weight_ = 1;
  size_t heaviest_ = 1;
  std::optional<Simulator> simulator_;  // over plans_
};

/// A contender's best cut.
struct Standing {
  std::shared_ptr<const Contender> contender;
  Cut cut;
  Prediction prediction;
  std::optional<double> measured;

  double seconds() const { return measured.value_or(prediction.seconds); }
};

/// Those with the least time first; measured ones before others.
void sort_standings(std::vector<Standing>& standings) {
  std::stable_sort(standings.begin(), standings.end(), [](const Standing& a, const Standing& b) {
    return std::pair(!a.measured, a.seconds()) < std::pair(!b.measured, b.seconds());
  });
}

class Contest {
 public:
  Contest(const CallShape& shape, const Fabric& fabric, const std::vector<AlgorithmName>& wishes)
      : shape_(shape), fabric_(fabric), bytes_(typical_bytes(shape)) {
    find_entrants(wishes);
    if (entrants_.empty()) find_entrants({});
    if (entrants_.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string("no algorithm offers ") + to_string(shape.collective) + " for " +
                      std::to_string(fabric.world_size()) + " ranks" +
                      (shape.wide_accumulation ? " with one rounding" : "") +
                      (shape.codec.empty() ? "" : " with codec " + shape.codec));
    }
  }

  /// The contenders that the Fabric has measured times for; see kTunedReach.
  std::vector<Standing> measured() const {
    std::vector<Standing> standings;
    if (shape_.bytes == CallShape::kUneven || !shape_.codec.empty()) return standings;
    const std::vector<Fabric::Tuned> times = nearest_times();
    for (const Entrant& entrant : entrants_) {
      std::shared_ptr<const Contender> contender;
      for (const Fabric::Tuned& time : times) {
        if (time.algorithm != entrant.generator->full_name(entrant.parameter)) continue;
        if (!contender) contender = enter(entrant);
        const Cut cut = contender->in_slices(bytes_, time.slice_bytes, time.window);
        Prediction prediction = contender->predict(bytes_, cut, slices_of(*contender));
        double seconds = time.seconds;
        if (time.bytes != bytes_) {
          // The other size's time, changed as the model says that it changes with the size.
          const Cut then = contender->in_slices(time.bytes, time.slice_bytes, time.window);
          seconds *= prediction.seconds /
                     contender->predict(time.bytes, then, slices_of(*contender)).seconds;
        }
        standings.push_back({contender, cut, std::move(prediction), seconds});
      }
    }
    sort_standings(standings);
    return standings;
  }

  /// All contenders by simulated time, those that cannot be the best left out unless `all`.
  std::vector<Standing> simulated(bool all) const {
    std::vector<Standing> standings;
    double best = std::numeric_limits<double>::infinity();
    for (const Entrant& entrant : entrants_) {
      const auto contender = enter(entrant);
      std::optional<Standing> standing;
      for (const size_t part : parts()) {
        const Cut cut = contender->cut(bytes_, part, kWindow);
        if (part != parts().back() && floods(*contender, cut)) continue;
        if (standing && cut.slice_bytes == standing->cut.slice_bytes) continue;
        if (!all && contender->bound(bytes_, cut) >= best) continue;
        Prediction prediction =
            contender->predict(bytes_, cut, contender->has_many_ops() ? 1 : kFirstLook);
        best = std::min(best, prediction.seconds);
        if (!standing || prediction.seconds < standing->prediction.seconds) {
          standing = {contender, cut, std::move(prediction), std::nullopt};
        }
        if (contender->has_many_ops()) break;
      }
      if (standing) standings.push_back(std::move(*standing));
    }
    sort_standings(standings);
    if (!all && standings.size() > kFinalists) standings.resize(kFinalists);
    for (Standing& standing : standings) {
      standing.prediction =
          standing.contender->predict(bytes_, standing.cut, slices_of(*standing.contender));
    }
    sort_standings(standings);
    if (!standings.empty()) try_wide_window(standings.front());
    return standings;
  }

  /// What was found for the size class, for the call itself.
  void resize(Standing& standing) const {
    if (shape_.bytes == CallShape::kUneven || shape_.bytes == 0 || shape_.bytes == bytes_) return;
    const Contender& contender = *standing.contender;
    const double before = standing.prediction.seconds;
    const Cut cut =
        contender.in_slices(shape_.bytes, standing.cut.slice_bytes, standing.cut.window);
    standing.prediction = contender.predict(shape_.bytes, cut, slices_of(contender));
    if (standing.measured) *standing.measured *= standing.prediction.seconds / before;
  }

 private:
  struct Entrant {
    const Generator* generator;
    int parameter;
  };

  void find_entrants(const std::vector<AlgorithmName>& wishes) {
    const PlanRequest request{shape_.collective, 0, fabric_.world_size(), shape_.root, &fabric_};
    for (const Generator& generator : generators()) {
      if (!generator.applies(request) || generator.coded == shape_.codec.empty()) continue;
      if (generator.encodes_sums_again && !shape_.exact_sums) continue;
      if (!generator.coded && shape_.wide_accumulation && is_reduction(shape_.collective) &&
          !generator.rounds_once) {
        continue;
      }
      const std::vector<int> parameters =
          generator.parameters == nullptr ? std::vector{0} : generator.parameters(request);
      for (const AlgorithmName& wish : wishes) check_parameter(wish, generator, parameters);
      for (const int parameter : parameters) {
        const bool wished =
            wishes.empty() || std::any_of(wishes.begin(), wishes.end(), [&](const auto& wish) {
              return wish.matches(generator.name, parameter);
            });
        if (wished) entrants_.push_back({&generator, parameter});
      }
    }
  }

  void check_parameter(const AlgorithmName& wish, const Generator& generator,
                       const std::vector<int>& parameters) const {
    if (wish.name != generator.name || !wish.parameter ||
        std::count(parameters.begin(), parameters.end(), *wish.parameter) > 0) {
      return;
    }
    std::string message = "invalid algorithm '" + generator.full_name(*wish.parameter) + "' for " +
                          to_string(shape_.collective) + " by " +
                          std::to_string(fabric_.world_size()) + " ranks: expected ";
    const char* separator = "";
    for (const int parameter : parameters) {
      message.append(std::exchange(separator, ", ")).append(generator.full_name(parameter));
    }
    throw Error(ErrorCode::kInvalidArgument, message);
  }

  std::span<const size_t> parts() const {
    if (fabric_.one_host()) return kHostParts;
    if (is_sparse()) return kSparseParts;
    const double ratio = shape_.coding.of(1).ratio;
    size_t count = kNetworkParts.size();
    while (count > 1 &&
           static_cast<double>(kNetworkParts[count - 1]) * ratio < kLeastMessageBytes) {
      --count;
    }
    return std::span(kNetworkParts).first(count);
  }

  bool floods(const Contender& contender, const Cut& cut) const {
    return !is_sparse() && contender.floods(cut, shape_.coding.of(1).ratio);
  }

  bool is_sparse() const { return shape_.coding.of(1).ratio < kFewBytes; }

  std::shared_ptr<const Contender> enter(const Entrant& entrant) const {
    return std::make_shared<const Contender>(*entrant.generator, entrant.parameter, shape_,
                                             fabric_);
  }

  static int slices_of(const Contender& contender) { return contender.has_many_ops() ? 1 : 0; }

  void try_wide_window(Standing& standing) const {
    const Contender& contender = *standing.contender;
    if (contender.has_many_ops() || standing.cut.window < kWindow || is_sparse()) return;
    const Cut wide = contender.cut(bytes_, standing.cut.part_bytes, kWideWindow);
    if (floods(contender, wide)) return;
    Prediction prediction = contender.predict(bytes_, wide, 0);
    if (prediction.seconds < standing.prediction.seconds * kWorthMoreMemory) {
      standing.cut = wide;
      standing.prediction = std::move(prediction);
    }
  }

  /// The measured times of the nearest size, the smaller one of two.
  std::vector<Fabric::Tuned> nearest_times() const {
    std::vector<Fabric::Tuned> nearest;
    double least = kTunedReach;
    for (const Fabric::Tuned& time : fabric_.tuned) {
      if (time.collective != shape_.collective || time.ranks != fabric_.world_size() ||
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

  const CallShape& shape_;
  const Fabric& fabric_;
  const size_t bytes_;
  std::vector<Entrant> entrants_;
};

}  // namespace

Planner::Planner(int rank, std::shared_ptr<const Fabric> fabric, const std::string& forced)
    : rank_(rank), forced_(parse_algorithms(forced)), fabric_(std::move(fabric)) {
  fabric_->validate();
  if (rank < 0 || rank >= fabric_->world_size()) {
    throw Error(ErrorCode::kInvalidArgument, "invalid rank " + std::to_string(rank) +
                                                 " in a group of " +
                                                 std::to_string(fabric_->world_size()));
  }
}

void Planner::check(const CallShape& shape) const {
  if (is_rooted(shape.collective) && (shape.root < 0 || shape.root >= fabric_->world_size())) {
    throw Error(ErrorCode::kInvalidArgument, std::string(to_string(shape.collective)) +
                                                 ": invalid root rank " +
                                                 std::to_string(shape.root) + ", expected 0 ... " +
                                                 std::to_string(fabric_->world_size() - 1));
  }
}

Choice Planner::choose(const CallShape& shape) {
  const std::lock_guard lock(mutex_);
  check(shape);
  const Key key{shape.collective,        shape.root,       shape.wide_accumulation,
                size_class(shape.bytes), shape.algorithms, shape.codec};
  auto found = cache_.find(key);
  if (found == cache_.end()) found = cache_.emplace(key, make_choice(shape)).first;
  return found->second;
}

Choice Planner::make_choice(const CallShape& shape) const {
  const Contest contest(shape, *fabric_,
                        shape.algorithms.empty() ? forced_ : parse_algorithms(shape.algorithms));
  std::vector<Standing> standings = contest.measured();
  if (standings.empty()) standings = contest.simulated(false);
  const Standing& best = standings.front();
#ifndef NDEBUG
  if (best.contender->plans().size() <= kMaxCheckedRanks) check_plans(best.contender->plans());
#endif
  return {std::make_shared<const Plan>(best.contender->plans()[static_cast<size_t>(rank_)]),
          best.cut.slice_bytes, best.cut.part_bytes, best.cut.window, best.seconds()};
}

std::vector<Candidate> Planner::explain(const CallShape& shape) const {
  const std::lock_guard lock(mutex_);
  check(shape);
  const Contest contest(shape, *fabric_,
                        shape.algorithms.empty() ? forced_ : parse_algorithms(shape.algorithms));
  std::vector<Standing> standings = contest.simulated(true);
  for (Standing& standing : contest.measured()) standings.push_back(std::move(standing));
  sort_standings(standings);
  for (Standing& standing : standings) contest.resize(standing);
  std::vector<Candidate> candidates;
  for (Standing& standing : standings) {
    candidates.push_back({standing.contender->name(), standing.cut.slice_bytes, standing.cut.window,
                          std::move(standing.prediction), standing.measured});
  }
  return candidates;
}

std::shared_ptr<const Fabric> Planner::fabric() const {
  const std::lock_guard lock(mutex_);
  return fabric_;
}

void Planner::set_fabric(std::shared_ptr<const Fabric> fabric) {
  fabric->validate();
  const std::lock_guard lock(mutex_);
  if (fabric->world_size() != fabric_->world_size()) {
    throw Error(ErrorCode::kInvalidArgument, "a fabric of " + std::to_string(fabric->world_size()) +
                                                 " ranks for a group of " +
                                                 std::to_string(fabric_->world_size()));
  }
  fabric_ = std::move(fabric);
  cache_.clear();
}

}  // namespace q7x2
