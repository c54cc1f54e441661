#include "plan/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "plan/cost/model.h"
#include "plan/cost/tally.h"

namespace q7x2 {

CostModel::Time& CostModel::Time::operator+=(const Time& other) {
  fixed += other.fixed;
  per_byte += other.per_byte;
  return *this;
}

void CostModel::Time::raise_to(const Time& other) {
  fixed = std::max(fixed, other.fixed);
  per_byte = std::max(per_byte, other.per_byte);
}

/// Adds up what the ranks of a round do, as seen from the busiest core.
class CostModel::Cores {
 public:
  explicit Cores(const Machines& machines)
      : machines_(machines), sums_(machines.all().size()), is_touched_(sums_.size()) {}

  void add(int rank, const Time& time) {
    busiest_.raise_to(time);
    const size_t machine = machines_.of(rank);
    if (!is_touched_[machine]) touched_.push_back(machine);
    is_touched_[machine] = true;
    sums_[machine] += time;
  }

  /// Returns the time of all that was added, and forgets it.
  Time take() {
    Time time = std::exchange(busiest_, {});
    for (const size_t machine : touched_) {
      const auto cores = static_cast<double>(machines_.all()[machine].cores);
      time.raise_to({sums_[machine].fixed / cores, sums_[machine].per_byte / cores});
      sums_[machine] = {};
      is_touched_[machine] = false;
    }
    touched_.clear();
    return time;
  }

 private:
  const Machines& machines_;
  std::vector<Time> sums_;
  std::vector<bool> is_touched_;
  std::vector<size_t> touched_;
  Time busiest_;
};

/// Reads a Schedule round by round, and sums up what its ranks, wires and machines have to do.
class CostModel::Reading {
 public:
  explicit Reading(CostModel& model)
      : model_(model),
        tally_(model.site_, model.schedule_.num_members()),
        sending_(model.site_.machines),
        receiving_(model.site_.machines),
        both_(model.site_.machines),
        folding_(model.site_.machines),
        ranks_(static_cast<size_t>(model.schedule_.num_members())) {}

  void add(const Round& round) {
    const CodingCost::Message message =
        round.coded == Edges::kNone ? CodingCost::Message{}
                                    : model_.coding_.of(static_cast<size_t>(round.contributions));
    tally_.count(round, message.ratio);
    Step step{.repeats = round.repeats,
              .turns = round.turns,
              .alpha = round.repeats > 1 ? tally_.mean_alpha() : tally_.alpha(),
              .latency = round.latency,
              .longest_far = tally_.longest_far()};
    bool is_crowded = false;
    for (const int rank : tally_.ranks()) {
      add(round, rank, message, step);
      is_crowded |= tally_.at(rank).messages_in_near > 0 && model_.site_.machines.is_crowded(rank);
    }
    if (is_crowded) step.alpha += model::kTurnSeconds;
    model_.longest_far_ = std::max(model_.longest_far_, step.longest_far);
    step.out = sending_.take();
    step.in = receiving_.take();
    step.both = both_.take();
    step.fold = folding_.take();
    through_.emplace_back();
    for (const int resource : tally_.resources()) {
      const double share = tally_.through(resource);
      through_.back().emplace_back(static_cast<size_t>(resource), share);
      model_.resource_bytes_[static_cast<size_t>(resource)] += round.repeats * share;
    }
    model_.messages_ += round.repeats * tally_.messages();
    model_.steps_.push_back(step);
    is_fresh_ = round.folds;
  }

  /// After the last round: how long the busiest wire takes, in each step and in all of them.
  void find_wires() {
    model_.find_rates(tally_.senders());
    const auto& resources = model_.site_.routes.resources();
    for (size_t i = 0; i < through_.size(); ++i) {
      Step& step = model_.steps_[i];
      for (const auto& [resource, share] : through_[i]) {
        const Routes::Resource& of = resources[resource];
        if (of.kind == Routes::Kind::kWindow) continue;
        const double rate = model_.rates_[resource];
        if (of.kind != Routes::Kind::kMemory) {
          step.short_wire = std::max(step.short_wire, share / of.rate);
        }
        if (share / rate <= step.wire) continue;
        step.wire = share / rate;
        step.at_once = of.burst / rate;
      }
    }
    for (size_t i = 0; i < resources.size(); ++i) {
      const double bytes = model_.resource_bytes_[i];
      if (resources[i].kind == Routes::Kind::kWindow) {
        if (bytes > 0) model_.windows_.push_back({bytes, resources[i].rate, resources[i].burst});
        continue;
      }
      model_.wire_ = std::max(model_.wire_, bytes / model_.rates_[i]);
      if (resources[i].kind == Routes::Kind::kMemory) continue;
      model_.short_wire_ = std::max(model_.short_wire_, bytes / resources[i].rate);
    }
  }

  /// How long the busiest rank or machine takes, and in which steps ranks take part.
  void find_cores() {
    const Machines& machines = model_.site_.machines;
    model_.machine_time_.resize(machines.all().size());
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Time& time = ranks_[r].time;
      model_.busiest_.raise_to(time);
      const size_t machine = machines.of(static_cast<int>(r));
      const auto share = 1.0 / machines.all()[machine].cores;
      model_.machine_time_[machine] += {time.fixed * share, time.per_byte * share};
      if (ranks_[r].span.first != kNever) model_.spans_.push_back(ranks_[r].span);
    }
    for (const Time& time : model_.machine_time_) model_.busiest_.raise_to(time);
    std::ranges::sort(model_.spans_);
    const auto same = std::ranges::unique(model_.spans_);
    model_.spans_.erase(same.begin(), same.end());
  }

  /// How many blocks the busiest rank holds.
  void find_blocks() {
    const Schedule& schedule = model_.schedule_;
    if (!ranks_.empty()) {
      model_.scratch_blocks_ =
          static_cast<size_t>(std::ranges::max_element(ranks_, {}, &Rank::scratch)->scratch);
      model_.shared_stages_ =
          static_cast<size_t>(std::ranges::max_element(ranks_, {}, &Rank::stages)->stages);
    }
    if (schedule.scratch_blocks() >= 0) {
      model_.scratch_blocks_ = static_cast<size_t>(schedule.scratch_blocks());
    }
    model_.scratch_blocks_ += static_cast<size_t>(schedule.coding_blocks());
  }

 private:
  static constexpr size_t kNever = ~size_t{0};
  /// What one has to do in all rounds.
  struct Rank {
    Span span = {kNever, 0};
    Time time = {};
    double scratch = 0;
    double stages = 0;
  };

  void add(const Round& round, int rank, const CodingCost::Message& message, Step& step) {
    const Tally::Rank& it = tally_.at(rank);
    const Time out = model_.send(round, rank, it, message, is_fresh_);
    const Time in = model_.receive(round, rank, it, message);
    const bool folds = round.folds && is_reduction(model_.schedule_.collective());
    const Time fold = folds ? model_.fold(rank, it, message) : Time{};
    sending_.add(rank, out);
    receiving_.add(rank, in);
    both_.add(rank, {out.fixed + in.fixed, out.per_byte + in.per_byte});
    folding_.add(rank, fold);
    const double arrivals = it.messages_in_near + it.messages_in_far;
    const double departures = it.messages_out_near + it.messages_out_far;
    step.arrivals = std::max(step.arrivals, arrivals);
    step.departures = std::max(step.departures, departures);
    // The messages of one part, however few parts there are: an owner hears from all, and tells
    // all.
    if (round.folds) step.least_arrivals = std::max(step.least_arrivals, arrivals / it.parts_in);
    if (round.same_data) {
      step.least_departures = std::max(step.least_departures, departures / it.blocks_out);
    }
    Rank& whole = ranks_[static_cast<size_t>(rank)];
    const auto repeats = static_cast<double>(round.repeats);
    whole.time += {repeats * (out.fixed + in.fixed + fold.fixed),
                   repeats * (out.per_byte + in.per_byte + fold.per_byte)};
    if (round.folds) whole.scratch += repeats * arrivals;
    whole.stages += repeats * it.stages;
    const size_t index = model_.steps_.size();
    whole.span = {std::min(whole.span.first, index), index};
  }

  CostModel& model_;
  Tally tally_;
  Cores sending_;
  Cores receiving_;
  Cores both_;
  Cores folding_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<std::pair<size_t, double>>> through_;  // by step: shares by resource
  bool is_fresh_ = true;  // what is sent has been folded just now, or comes from the caller
};

CostModel::CostModel(const Schedule& schedule, const Site& site, const CodingCost& coding)
    : schedule_(schedule),
      site_(site),
      coding_(coding),
      resource_bytes_(site.routes.resources().size()),
      incast_rate_(std::numeric_limits<double>::infinity()) {
  if (is_flat(schedule.collective())) parts_ = static_cast<double>(schedule.part_weights().size());
  Reading reading(*this);
  for (const Round& round : schedule.rounds()) reading.add(round);
  reading.find_wires();
  reading.find_cores();
  reading.find_blocks();
}

// Memory is no wire: what it takes is the time of the cores that copy.
void CostModel::find_rates(const std::vector<int>& senders) {
  const auto& resources = site_.routes.resources();
  for (size_t i = 0; i < resources.size(); ++i) {
    const bool is_ingress = resources[i].kind == Routes::Kind::kIngress;
    const bool is_memory = resources[i].kind == Routes::Kind::kMemory;
    rates_.push_back(is_memory
                         ? std::numeric_limits<double>::infinity()
                         : resources[i].rate * (is_ingress ? model::incast_share(senders[i]) : 1));
    if (is_ingress && senders[i] > 1) {
      incast_rate_ = std::min(incast_rate_, resources[i].rate / senders[i]);
    }
  }
}

CostModel::Time CostModel::send(const Round& round, int rank, const Tally::Rank& it,
                                const CodingCost::Message& message, bool is_fresh) const {
  const Fabric& fabric = site_.members;
  Time time;
  time.fixed =
      fabric.network.overhead * it.messages_out_far + fabric.memory.overhead * it.messages_out_near;
  time.per_byte = it.staged / rate_or_unlimited(fabric.copy_rate_of(rank)) *
                  (is_fresh && round.contributions > 1 ? model::kFoldedShare : 1);
  if (is_fresh) time.per_byte += it.encoded / message.encode_rate;
  // Contributions that leave as they are take the residual along.
  if (schedule_.edges() != Edges::kNone && steps_.empty()) {
    time.per_byte += it.exact / rate_or_unlimited(fabric.reduce_rate_of(rank));
  }
  return time;
}

CostModel::Time CostModel::receive(const Round& round, int rank, const Tally::Rank& it,
                                   const CodingCost::Message& message) const {
  const Fabric& fabric = site_.members;
  Time time;
  time.fixed =
      fabric.network.overhead * it.messages_in_far + fabric.memory.overhead * it.messages_in_near;
  if (round.folds) return time;
  time.per_byte =
      it.in_coded / message.decode_rate + it.in_near / rate_or_unlimited(fabric.copy_rate_of(rank));
  return time;
}

CostModel::Time CostModel::fold(int rank, const Tally::Rank& it,
                                const CodingCost::Message& message) const {
  const double pass = 1 / rate_or_unlimited(site_.members.reduce_rate_of(rank)) / model::kPasses;
  // Decoding the first operand writes the sum.
  const double own = (it.in_coded > 0 ? 1 : 2) * it.parts_in_share;
  return {0, (it.in + own) * pass + it.in_coded / message.decode_rate};
}

double CostModel::selection(const SimulatedCall& call) const {
  if (schedule_.edges() == Edges::kNone) return 0;
  const int inputs =
      schedule_.collective() == Collective::kReduceScatter ? schedule_.world_size() : 1;
  return static_cast<double>(call.bytes) * inputs / coding_.select_rate *
         site_.machines.most_turns();
}

double CostModel::seconds(const Step& step, double slice) const {
  // Most parts of a slice of a few elements are empty, and so are their messages.
  const double filled = std::min(1.0, slice / model::kElementBytes / parts_);
  const double arrivals = std::max(step.least_arrivals, step.arrivals * filled);
  const double departures = std::max(step.least_departures, step.departures * filled);
  const auto core = [&](const Time& time, double share) {
    return time.fixed * share + time.per_byte * slice;
  };
  const double out = core(step.out, departures / step.departures);
  const double in = core(step.in, arrivals / step.arrivals);
  const double both = std::min(
      out + in, core(step.both, std::max(departures / step.departures, arrivals / step.arrivals)));
  const double cpu = std::max({both, out + in / arrivals, out / departures + in});
  const double seconds_a_byte = is_long(step.longest_far, slice) ? step.wire : step.short_wire;
  const double wire = std::max(0.0, seconds_a_byte * slice - step.at_once);
  const double latency = step.turns * step.latency * step.alpha;
  return step.repeats *
         (latency + std::max(wire, cpu) + std::min(wire, cpu) / arrivals + step.fold.at(slice));
}

bool CostModel::is_long(double share, double slice) const {
  return share * slice > model::kShortBytes;
}

double CostModel::wire_seconds(double slice) const {
  return is_long(longest_far_, slice) ? wire_ : short_wire_;
}

double CostModel::seconds(const SimulatedCall& call) const {
  const auto slice = static_cast<double>(std::min(call.slice_bytes, call.bytes));
  const auto bytes = static_cast<double>(call.bytes);
  double seconds = std::max(seconds_after_pause(call), wire_seconds(slice) * bytes);
  for (const Window& window : windows_) {
    seconds = std::max(seconds, window.share * bytes / window.rate);
  }
  return seconds;
}

double CostModel::seconds_after_pause(const SimulatedCall& call) const {
  const auto bytes = static_cast<double>(std::max<size_t>(call.bytes, 1));
  const double slice = std::min(static_cast<double>(std::max<size_t>(call.slice_bytes, 1)), bytes);
  std::vector<double> begin{0};  // by step
  for (const Step& step : steps_) begin.push_back(begin.back() + seconds(step, slice));
  double longest = 0;
  for (const auto& [first, last] : spans_)
    longest = std::max(longest, begin[last + 1] - begin[first]);
  const double filled = std::min(1.0, slice / model::kElementBytes / parts_);
  const double each =
      std::max({wire_seconds(slice) * slice, busiest_.fixed * filled + busiest_.per_byte * slice,
                longest / std::max(call.window, 1)});
  double waiting = 0;  // for acknowledgements, of what the windows do not hold
  for (const Window& window : windows_) {
    const double round_trips = std::ceil(window.share * bytes / window.bytes) - 1;
    waiting = std::max(waiting, round_trips * window.bytes / window.rate);
  }
  return begin.back() + std::max((bytes / slice - 1) * each, waiting) + selection(call);
}

Prediction CostModel::predict(const SimulatedCall& call) const {
  Prediction prediction;
  prediction.seconds = seconds(call);
  prediction.seconds_after_pause = seconds_after_pause(call);
  const auto bytes = static_cast<double>(call.bytes);
  const double slice = std::min(static_cast<double>(call.slice_bytes), bytes);
  SimulatedCall one = call;
  one.bytes = std::min(call.bytes, call.slice_bytes);
  prediction.first_slice_seconds = seconds(one);
  for (size_t i = 0; i < resource_bytes_.size(); ++i) {
    if (resource_bytes_[i] <= 0) continue;
    const Routes::Resource& of = site_.routes.resources()[i];
    // At the rate that the time itself was computed with.
    const bool is_short = of.kind != Routes::Kind::kMemory && !is_long(longest_far_, slice);
    prediction.loads.push_back({of.name, resource_bytes_[i] * bytes,
                                resource_bytes_[i] * bytes / (is_short ? of.rate : rates_[i])});
  }
  const double slices =
      std::max(1.0, bytes / static_cast<double>(std::max<size_t>(call.slice_bytes, 1)));
  // Most parts of a slice of a few elements are empty. No rank sends or receives them.
  const double filled = std::min(1.0, std::max(slice, 1.0) / model::kElementBytes / parts_);
  for (size_t i = 0; i < machine_time_.size(); ++i) {
    const double busy =
        machine_time_[i].fixed * slices * filled + machine_time_[i].per_byte * bytes;
    if (busy > 0) prediction.loads.push_back({"cores " + site_.machines.all()[i].name, 0, busy});
  }
  const auto busiest = std::ranges::max_element(prediction.loads, {}, &Prediction::Load::busy);
  if (busiest != prediction.loads.end()) {
    prediction.bottleneck = static_cast<int>(busiest - prediction.loads.begin());
  }
  return prediction;
}

}  // namespace q7x2
