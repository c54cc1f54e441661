#include "plan/cost/simulated_run.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"

namespace q7x2 {
namespace {

/// Windows of slices that are simulated: one to fill the pipeline, one in the steady state, one to
/// drain it.
constexpr int kWindows = 3;

size_t divide_up(size_t value, size_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace

SimulatedRun::SimulatedRun(const SimulatedPlans& plans, const SimulatedCall& call)
    : plans_(plans),
      call_(call),
      ranks_(plans.plans.size()),
      wires_(plans.site.routes.resources().size()),
      turns_(turns()),
      events_(num_streams()) {
  const size_t bytes = std::max<size_t>(call.bytes, 1);
  const size_t slice = std::min(std::max<size_t>(call.slice_bytes, 1), bytes);
  all_slices_ = static_cast<double>(bytes) / static_cast<double>(slice);
  const auto total = static_cast<uint32_t>(
      std::min<size_t>(divide_up(bytes, slice), std::numeric_limits<uint32_t>::max()));
  window_ = static_cast<uint32_t>(std::max(call.window, 1));
  const uint32_t enough =
      call.max_slices > 0 ? static_cast<uint32_t>(call.max_slices) : window_ * uint32_t{kWindows};
  num_slices_ = std::min(total, enough);
  const bool has_last = num_slices_ == total && bytes % slice > 0;
  lengths_.emplace_back(plans_.plans[0], slice);
  lengths_.emplace_back(plans_.plans[0], has_last ? bytes % slice : slice);

  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    // Ranks that have nothing to do have no slices either.
    const Plan& plan = plans_.plans[rank];
    ranks_[rank].dag = DagWindow(plan, plan.ops.empty() ? 0 : num_slices_, window_);
  }
  for (const q7x2::Machine& machine : plans_.site.machines.all()) {
    machines_.push_back({.free_cores = machine.cores, .busy = 0, .waiting = {}});
  }
  for (size_t i = 0; i < wires_.size(); ++i) wires_[i].burst = plans_.bursts[i];
  for (size_t i = 0; i < wires_.size(); ++i) {
    const Routes::Resource& of = plans_.site.routes.resources()[i];
    if (of.kind != Routes::Kind::kWindow) continue;
    windows_.emplace(i, SlidingWindow(of.burst, of.burst / of.rate));
  }
  if (call.after_silence) connections_.resize(plans.paths.size());
  slices_.resize(num_slices_);
  done_.resize(num_slices_);
}

std::optional<Prediction> SimulatedRun::run() {
  if (plans_.symmetry && !std::ranges::all_of(lengths_, &PartLengths::are_equal)) return {};
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    admit(rank);
    settle(rank);
  }
  while (!events_.empty()) {
    const auto event = events_.pop();
    now_ = event.time;
    handle(event.what);
    settle(plans_.tasks[event.what.op].rank);
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].dag.done()) {
      throw Error(ErrorCode::kInvalidArgument, plans_.plans[rank].algorithm + ": rank " +
                                                   std::to_string(rank) +
                                                   " waits for ever for a message or an op");
    }
  }
  return result();
}

std::vector<uint32_t> SimulatedRun::turns() const {
  if (!plans_.symmetry) return {};
  const std::vector<uint32_t> positions = this->positions();
  std::vector<uint32_t> turns;
  turns.reserve(plans_.tasks.size());
  for (size_t rank = 0; rank < plans_.plans.size(); ++rank) {
    for (const Op& op : plans_.plans[rank].ops) {
      const uint32_t distance = op.kind == OpKind::kSend
                                    ? plans_.symmetry->distance(static_cast<uint32_t>(rank),
                                                                static_cast<uint32_t>(op.peer))
                                    : 0;
      turns.push_back(distance << 16 | positions[rank]);
    }
  }
  return turns;
}

std::vector<uint32_t> SimulatedRun::positions() const {
  const Fabric& fabric = plans_.site.members;
  std::vector<uint32_t> positions;
  std::map<size_t, uint32_t> next;
  for (int member = 0; member < fabric.world_size(); ++member) {
    const size_t place = fabric.racks.size() > 1 ? static_cast<size_t>(fabric.rack_of(member))
                                                 : plans_.site.machines.of(member);
    positions.push_back(next[place]++);
  }
  return positions;
}

SimulatedRun::Slice& SimulatedRun::slice(uint32_t index) {
  std::unique_ptr<Slice>& place = slices_[index];
  if (!place) {
    place = std::make_unique<Slice>();
    place->met.resize(plans_.tasks.size());
    if (call_.trace) place->begin.resize(plans_.tasks.size());
    for (const Plan& plan : plans_.plans) {
      if (!plan.ops.empty()) ++place->ranks_left;
    }
  }
  return *place;
}

void SimulatedRun::admit(uint32_t rank) {
  DagWindow& dag = ranks_[rank].dag;
  while (dag.can_admit()) {
    slice(static_cast<uint32_t>(dag.admitted()));
    dag.admit();
  }
}

void SimulatedRun::settle(uint32_t rank) {
  DagWindow& dag = ranks_[rank].dag;
  while (const auto step = dag.next()) {
    start({static_cast<uint32_t>(dag.slice_at(step->place)), plans_.first_task[rank] + step->op});
  }
}

void SimulatedRun::start(Work work) {
  const size_t bytes = length(work.slice, work.op);
  if (bytes == 0) {
    complete(work);
    return;
  }
  if (plans_.tasks[work.op].kind != OpKind::kRecv) {
    enqueue(work);
    return;
  }
  uint8_t& met = slices_[work.slice]->met[work.op];
  met |= kPosted;
  if ((met & kArrived) != 0) {
    enqueue(work);
  }
}

void SimulatedRun::complete(Work work) {
  const uint32_t rank = plans_.tasks[work.op].rank;
  const uint32_t op = work.op - plans_.first_task[rank];
  if (call_.trace && length(work.slice, work.op) > 0) {
    timeline_.push_back(
        {static_cast<int>(rank), work.slice, op, slices_[work.slice]->begin[work.op], now_});
  }
  DagWindow& dag = ranks_[rank].dag;
  const auto successors = plans_.successors_of(plans_.tasks[work.op]);
  if (dag.complete({dag.place_of(work.slice), op}, successors)) slice_complete(work.slice, rank);
}

void SimulatedRun::slice_complete(uint32_t index, uint32_t rank) {
  done_[index] = std::max(done_[index], now_);
  if (--slices_[index]->ranks_left == 0) slices_[index].reset();
  admit(rank);
}

void SimulatedRun::handle(const Event& event) {
  const Work work{event.slice, event.op};
  switch (event.kind) {
    case Kind::kCpu:
      leave_cpu(work);
      return;
    case Kind::kHop:
      hop(event);
      return;
    case Kind::kArrival: {
      const Work receive{work.slice, plans_.tasks[work.op].partner};
      uint8_t& met = slice(work.slice).met[receive.op];
      met |= kArrived;
      if ((met & kPosted) != 0) enqueue(receive);
      return;
    }
  }
}

void SimulatedRun::dispatch(Work send) {
  const SimulatedPlans::Task& message = plans_.tasks[send.op];
  const SimulatedPlans::Path& path = plans_.paths[message.route];
  const double alpha = plans_.costs[path.cost].alpha;
  if (!message.local) {
    push(at_once(), now_, Kind::kHop, send);
  } else {
    // Memory copies cost core time, not link time. The interconnect of NUMA nodes beyond the memory
    // is a link.
    const size_t memory = plans_.resource(path, 0);
    wires_[memory].bytes += message_bytes(send);
    if (call_.trace) slice(send.slice).begin[message.partner] = now_;
    if (path.hops > 1) {
      push(at_once(), now_, Kind::kHop, send, 1);
    } else {
      push(delayed(path.cost), now_ + alpha, Kind::kArrival, send);
    }
  }
  complete(send);
}

double SimulatedRun::slow_start(const SimulatedPlans::Task& message, double bytes) {
  if (connections_.empty() || message.local) return 0;
  Connection& connection = connections_[message.route];
  if (connection.bytes == 0) connection.began = now_;
  connection.bytes += bytes;
  const double round_trip = 2 * plans_.costs[plans_.paths[message.route].cost].alpha;
  return connection.began + model::slow_start_rounds(connection.bytes) * round_trip;
}

void SimulatedRun::hop(const Event& event) {
  const SimulatedPlans::Task& message = plans_.tasks[event.op];
  const SimulatedPlans::Path& path = plans_.paths[message.route];
  const size_t resource = plans_.resource(path, event.hop);
  if (const auto window = windows_.find(resource); window != windows_.end()) {
    pass_window(event, window->second);
    return;
  }
  Wire& wire = wires_[resource];
  const double bytes = message_bytes({event.slice, event.op});
  const double rate = plans_.rate(resource, bytes);
  const double begin = std::max(now_, wire.free);
  double at_once = 0;
  if (const double most = plans_.bursts[resource]; most > 0) {
    const double saved = std::min(most, wire.burst + (begin - wire.free) * rate);
    at_once = std::min(bytes, saved);
    wire.burst = saved - at_once;
  }
  wire.free = begin + (bytes - at_once) / rate;
  wire.busy += bytes / rate;
  wire.bytes += bytes;
  if (call_.trace && event.hop == 0) slice(event.slice).begin[message.partner] = begin;
  const double allowed = event.hop == 0 ? slow_start(message, bytes) : event.end;
  const double end = std::max(allowed, wire.free);
  const auto next = static_cast<uint8_t>(event.hop + 1);
  if (next < path.hops) {
    push(leaving(resource), begin, Kind::kHop, {event.slice, event.op}, next, end);
  } else {
    push(arriving(resource), end + plans_.costs[path.cost].alpha, Kind::kArrival,
         {event.slice, event.op});
  }
}

// It is the last resource of its path.
void SimulatedRun::pass_window(const Event& event, SlidingWindow& window) {
  const SimulatedPlans::Path& path = plans_.paths[plans_.tasks[event.op].route];
  const size_t resource = plans_.resource(path, event.hop);
  const double bytes = message_bytes({event.slice, event.op});
  wires_[resource].busy += bytes / plans_.rates[resource];
  wires_[resource].bytes += bytes;
  const double end = window.pass(now_, event.end, bytes);
  push(arriving(resource), end + plans_.costs[path.cost].alpha, Kind::kArrival,
       {event.slice, event.op});
}

void SimulatedRun::enqueue(Work work) {
  const uint32_t index = plans_.tasks[work.op].rank;
  Rank& rank = ranks_[index];
  rank.queue.push_back(work);
  if (rank.has_core || rank.queue.size() > 1) return;
  Machine& machine = machine_of(index);
  if (machine.free_cores > 0) {
    --machine.free_cores;
    rank.has_core = true;
    run_next(index, 0);
  } else {
    machine.waiting.push_back(index);
  }
}

void SimulatedRun::run_next(uint32_t index, double delay) {
  const Work work = ranks_[index].queue.front();
  const double seconds = delay + plans_.work(work.op, length(work.slice, work.op));
  machine_of(index).busy += seconds;
  if (call_.trace && plans_.tasks[work.op].kind != OpKind::kRecv) {
    slices_[work.slice]->begin[work.op] = now_;
  }
  push(cpu_of(index), now_ + seconds, Kind::kCpu, work);
}

void SimulatedRun::leave_cpu(Work work) {
  const uint32_t index = plans_.tasks[work.op].rank;
  Rank& rank = ranks_[index];
  rank.queue.pop_front();
  if (plans_.tasks[work.op].kind == OpKind::kSend) {
    dispatch(work);
  } else {
    complete(work);
  }
  // What became ready at once comes before another rank gets the core.
  settle(index);
  if (!rank.queue.empty()) {
    run_next(index, 0);
    return;
  }
  rank.has_core = false;
  Machine& machine = machine_of(index);
  if (machine.waiting.empty()) {
    ++machine.free_cores;
    return;
  }
  const uint32_t next = machine.waiting.front();
  machine.waiting.pop_front();
  ranks_[next].has_core = true;
  run_next(next, model::kSwitchSeconds);
}

Prediction SimulatedRun::result() {
  Prediction prediction;
  prediction.first_slice_seconds = done_[0];
  // Slices end in order, up to the window.
  for (size_t i = 1; i < done_.size(); ++i) done_[i] = std::max(done_[i], done_[i - 1]);
  const double more = all_slices_ - num_slices_;
  const double scale = more > 0 ? all_slices_ / num_slices_ : 1;
  for (size_t i = 0; i < wires_.size(); ++i) {
    const Wire& wire = wires_[plans_.of_resource(i)];
    if (wire.bytes == 0) continue;
    const auto& resource = plans_.site.routes.resources()[i];
    prediction.loads.push_back({resource.name, wire.bytes * scale, wire.busy * scale});
  }
  for (size_t i = 0; i < machines_.size(); ++i) {
    const q7x2::Machine& machine = plans_.site.machines.all()[i];
    const double busy = machines_[plans_.of_machine(i)].busy;
    if (busy == 0) continue;
    prediction.loads.push_back({"cores " + machine.name, 0, busy * scale / machine.cores});
  }
  const auto& loads = prediction.loads;
  const auto busiest = std::max_element(
      loads.begin(), loads.end(), [](const auto& a, const auto& b) { return a.busy < b.busy; });
  if (busiest != loads.end()) {
    prediction.bottleneck = static_cast<int>(busiest - loads.begin());
  }
  prediction.seconds = done_.back();
  if (more > 0) {
    const double busiest_seconds = busiest == loads.end() ? 0 : busiest->busy / scale;
    prediction.seconds += more * seconds_a_slice(busiest_seconds);
  }
  prediction.seconds += plans_.selection(call_);
  prediction.seconds_after_pause = prediction.seconds;
  if (busiest != loads.end()) prediction.seconds = std::max(prediction.seconds, busiest->busy);
  prediction.timeline = std::move(timeline_);
  return prediction;
}

double SimulatedRun::seconds_a_slice(double busiest) const {
  double seen = done_[0] / window_;
  if (num_slices_ >= window_ * kWindows) {
    const size_t last = num_slices_ - window_ - 1;
    seen = (done_[last] - done_[last - window_]) / window_;
  }
  return std::max(busiest / num_slices_, seen);
}

}  // namespace q7x2
