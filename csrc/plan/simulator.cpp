#include "plan/simulator.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace q7x2 {
namespace {

/// A core that turns to another rank. Ranks only do that where there are more of them than cores.
constexpr double kSwitchSeconds = 2e-6;
/// Until the receiver of a message on such a host has its turn: whoever looks for messages keeps
/// its core for some microseconds before it offers it to others.
constexpr double kTurnSeconds = 4e-6;
/// Memory is passed three times by a copy (read, fetch of the lines that are written, write) and by
/// an addition to a sum (read both, write), by which `reduce_rate` is measured.
constexpr double kPasses = 3;
/// Of the time of a copy, what it takes to put a tile into shared memory that was folded just now:
/// it is read from the nearest cache.
constexpr double kFoldedShare = (kPasses - 1) / kPasses;
/// The share of a NIC's ingress that is lost for each further host that sends to it in one Plan:
/// TCP's flows into one port push each other back. It was measured up to 8 hosts. More flows share
/// the same queue, so the loss does not grow beyond twice as many.
constexpr double kIncast = 0.03;
constexpr int kMostIncast = 15;
/// Windows of slices that are simulated: one to fill the pipeline, one in the steady state, one to
/// drain it.
constexpr int kWindows = 3;
/// What the elements of a flat buffer usually are; decides who gets a part of a tiny one.
constexpr size_t kElementBytes = 4;

/// The bytes of each part in one slice.
class PartLengths {
 public:
  PartLengths(const Plan& plan, size_t slice_bytes) : blocked_(slice_bytes) {
    if (!is_flat(plan.collective)) return;
    const size_t element = std::min(kElementBytes, slice_bytes);
    const size_t elements = element == 0 ? 0 : slice_bytes / element;
    for (size_t part = 0; part < plan.part_weights.size(); ++part) {
      flat_.push_back((plan.part_begin(elements, part + 1) - plan.part_begin(elements, part)) *
                      element);
    }
  }

  size_t of(const Op& op) const { return flat_.empty() ? blocked_ : flat_[op.length_of.index]; }

 private:
  size_t blocked_;
  std::vector<size_t> flat_;
};

size_t divide_up(size_t value, size_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace

Simulator::Simulator(std::span<const Plan> plans, const Fabric& fabric, const CodingCost& coding)
    : plans_(plans),
      fabric_(fabric),
      coding_(coding),
      copy_rate_(rate_or_unlimited(fabric.copy_rate)),
      reduce_rate_(rate_or_unlimited(fabric.reduce_rate)),
      routes_(fabric) {
  if (plans.empty() || static_cast<int>(plans.size()) != fabric.world_size()) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(plans.size()) +
                                                 " Plans for a fabric of " +
                                                 std::to_string(fabric.world_size()) + " ranks");
  }
  first_op_.push_back(0);
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    rank_of_.insert(rank_of_.end(), plans[rank].ops.size(), static_cast<uint32_t>(rank));
    first_op_.push_back(static_cast<uint32_t>(rank_of_.size()));
  }
  messages_.resize(rank_of_.size());
  send_of_.resize(rank_of_.size());
  coding_seconds_.resize(rank_of_.size());

  // Receives by source and message, to be found by their sends.
  using Name = std::tuple<int32_t, uint16_t, uint32_t>;
  std::vector<std::vector<Name>> receives(plans.size());
  size_t unmatched = 0;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (uint32_t i = 0; i < plans[rank].ops.size(); ++i) {
      const Op& op = plans[rank].ops[i];
      if (op.kind == OpKind::kRecv) receives[rank].emplace_back(op.peer, op.message, i);
    }
    std::sort(receives[rank].begin(), receives[rank].end());
    unmatched += receives[rank].size();
  }

  find_machines();
  std::map<std::pair<int, int>, uint32_t> path_of;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const Plan& plan = plans[rank];
    std::vector<bool> staged(plan.num_stages);
    std::vector<bool> folded(plan.num_stages);
    for (const Op& op : plan.ops) {
      if (op.kind == OpKind::kReduce && op.stage != Op::kNoStage) folded[op.stage] = true;
    }
    for (uint32_t i = 0; i < plan.ops.size(); ++i) {
      const Op& op = plan.ops[i];
      if (op.kind != OpKind::kSend) continue;
      const auto& candidates = receives[static_cast<size_t>(op.peer)];
      const auto found =
          std::lower_bound(candidates.begin(), candidates.end(),
                           Name(static_cast<int32_t>(rank), op.message, uint32_t{0}));
      if (found == candidates.end() || std::get<0>(*found) != static_cast<int32_t>(rank) ||
          std::get<1>(*found) != op.message) {
        throw Error(ErrorCode::kInvalidArgument,
                    "rank " + std::to_string(op.peer) + " does not receive what rank " +
                        std::to_string(rank) + " sends: " + to_string(plan, op));
      }
      --unmatched;
      Message& message = messages_[first_op_[rank] + i];
      message.receive = first_op_[static_cast<size_t>(op.peer)] + std::get<2>(*found);
      send_of_[message.receive] = first_op_[rank] + i;
      message.local = fabric.same_host(static_cast<int>(rank), op.peer);
      if (message.local) {
        message.staged = staged[op.stage];
        message.folded = folded[op.stage];
        staged[op.stage] = true;
      }
      const std::pair hosts(fabric.host_of[rank], fabric.host_of[static_cast<size_t>(op.peer)]);
      const auto [path, is_new] = path_of.emplace(hosts, static_cast<uint32_t>(paths_.size()));
      if (is_new) {
        const auto& route = routes_.between(static_cast<int>(rank), op.peer);
        const double turn =
            message.local && machines_[machine_of(static_cast<uint32_t>(rank))].is_crowded()
                ? kTurnSeconds
                : 0;
        paths_.push_back({route.resources, route.cost.alpha + turn, route.cost.overhead});
      }
      message.route = path->second;
    }
  }
  std::vector<int> senders(routes_.resources().size());
  for (const Path& path : paths_) {
    for (const int resource : path.resources) ++senders[static_cast<size_t>(resource)];
  }
  for (size_t i = 0; i < senders.size(); ++i) {
    const Routes::Resource& resource = routes_.resources()[i];
    const bool congests = resource.kind == Routes::Kind::kIngress && senders[i] > 1;
    rates_.push_back(resource.rate /
                     (congests ? 1 + kIncast * std::min(senders[i] - 1, kMostIncast) : 1));
    if (congests) incast_rate_ = std::min(incast_rate_, resource.rate / senders[i]);
  }
  if (unmatched > 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(unmatched) + " receives without a send in " + plans[0].algorithm);
  }
  if (std::ranges::any_of(plans, [](const Plan& plan) { return plan.num_coded > 0; })) {
    count_contributions();
  }
}

void Simulator::find_machines() {
  std::map<std::string, uint32_t> known;
  for (const Fabric::Host& host : fabric_.hosts) {
    const auto next = static_cast<uint32_t>(machines_.size());
    const std::string& key = host.hardware.machine;
    const uint32_t index = key.empty() ? next : known.emplace(key, next).first->second;
    machine_of_host_.push_back(index);
    if (index == next) {
      machines_.push_back({.name = host.name, .cores = host.cores});
    } else {
      machines_[index].name += "+" + host.name;
    }
  }
  for (uint32_t rank = 0; rank < plans_.size(); ++rank) ++machines_[machine_of(rank)].ranks;
}

// What is copied to a coded block is one contribution; a reduction has those of all its operands.
// Ops come after those whose blocks they read, so of each block the last writer is the one.
void Simulator::count_contributions() {
  constexpr uint32_t kNobody = ~uint32_t{0};
  std::vector<std::vector<uint32_t>> makers(rank_of_.size());  // by op: of its coded sources
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    std::vector<uint32_t> writer(plans_[rank].num_coded, kNobody);
    for (uint32_t index = first_op_[rank]; index < first_op_[rank + 1]; ++index) {
      const Op& each = op(index);
      for (const Block& source : plans_[rank].sources_of(each)) {
        makers[index].push_back(source.is_coded() ? writer[source.index] : kNobody);
      }
      if (each.kind != OpKind::kSend && each.destination.is_coded()) {
        writer[each.destination.index] = index;
      }
    }
  }
  std::vector<uint32_t> known(rank_of_.size());
  const auto count = [&](const auto& self, uint32_t index) -> uint32_t {
    if (known[index] > 0) return known[index];
    uint32_t sum = 0;
    if (op(index).kind == OpKind::kRecv) {
      sum = self(self, send_of_[index]);
    } else {
      for (const uint32_t maker : makers[index]) sum += maker == kNobody ? 1 : self(self, maker);
    }
    return known[index] = sum;
  };
  for (uint32_t index = 0; index < rank_of_.size(); ++index) {
    const Op& each = op(index);
    if (each.kind == OpKind::kRecv) continue;
    if (each.kind == OpKind::kSend) {
      const bool coded = plan_of(index).sources_of(each)[0].is_coded();
      messages_[index].contributions = coded ? count(count, index) : 0;
      continue;
    }
    double& seconds = coding_seconds_[index];
    for (const uint32_t maker : makers[index]) {
      if (maker != kNobody) seconds += 1 / coding_.of(count(count, maker)).decode_rate;
    }
    if (each.destination.is_coded()) seconds += 1 / coding_.of(count(count, index)).encode_rate;
  }
}

double Simulator::selection(const SimulatedCall& call) const {
  const size_t inputs = plans_[0].collective == Collective::kReduceScatter ? plans_.size() : 1;
  const double seconds = static_cast<double>(call.bytes * inputs) / coding_.select_rate;
  double turns = 1;
  for (const Machine& machine : machines_) {
    turns = std::max(turns, static_cast<double>(machine.ranks) / machine.cores);
  }
  return seconds * turns;
}

const Plan& Simulator::plan_of(uint32_t index) const {
  return plans_[rank_of_[index]];
}

const Op& Simulator::op(uint32_t index) const {
  return plan_of(index).ops[index - first_op_[rank_of_[index]]];
}

double Simulator::work(uint32_t index, size_t bytes) const {
  const Op& op = this->op(index);
  const auto count = static_cast<double>(bytes);
  switch (op.kind) {
    case OpKind::kSend: {
      const Message& message = messages_[index];
      const bool is_staged_here = message.local && !message.staged;
      double staging = is_staged_here ? message_bytes(index, bytes) / copy_rate_ : 0;
      if (message.folded) staging *= kFoldedShare;
      return paths_[message.route].overhead + staging;
    }
    case OpKind::kRecv: {
      const Message& message = messages_[send_of_[index]];
      const bool in_place = !message.local || !op.destination.is_part();
      return paths_[message.route].overhead + (in_place ? 0 : count / copy_rate_);
    }
    case OpKind::kCopy:
      if (op.destination.is_coded() || plan_of(index).sources_of(op)[0].is_coded()) {
        return count * coding_seconds_[index];
      }
      return count / copy_rate_;
    case OpKind::kReduce: {
      const auto sources = plan_of(index).sources_of(op);
      const auto coded = static_cast<double>(std::ranges::count_if(sources, &Block::is_coded));
      // Every operand is read once and the sum written once, however many they are; where some are
      // coded, decoding writes it.
      const double passes = op.num_sources - coded + (coded > 0 ? 0 : 1);
      return count * (passes / kPasses / reduce_rate_ + coding_seconds_[index]);
    }
  }
  return 0;
}

double Simulator::message_bytes(uint32_t send, size_t bytes) const {
  return static_cast<double>(bytes) *
         (messages_[send].contributions > 0 ? coding_.of(messages_[send].contributions).ratio : 1);
}

double Simulator::bound(const SimulatedCall& call) const {
  const PartLengths lengths(plans_[0], call.slice_bytes);
  std::vector<double> wire(routes_.resources().size());
  std::vector<double> cpu(machines_.size());
  for (uint32_t i = 0; i < rank_of_.size(); ++i) {
    const Op& each = op(i);
    const size_t bytes = lengths.of(each);
    if (bytes == 0) continue;
    const uint32_t machine = machine_of(rank_of_[i]);
    cpu[machine] += work(i, bytes) / machines_[machine].cores;
    if (each.kind != OpKind::kSend || messages_[i].local) continue;
    for (const int resource : paths_[messages_[i].route].resources) {
      const auto r = static_cast<size_t>(resource);
      wire[r] += message_bytes(i, bytes) / rates_[r];
    }
  }
  const double slices = static_cast<double>(call.bytes) / static_cast<double>(call.slice_bytes);
  return std::max(*std::max_element(wire.begin(), wire.end()),
                  *std::max_element(cpu.begin(), cpu.end())) *
             slices +
         selection(call);
}

// One run: the clock, and what is in progress at its time.
class SimulatedRun {
 public:
  SimulatedRun(const Simulator& simulator, const SimulatedCall& call)
      : sim_(simulator), call_(call) {
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
    lengths_.emplace_back(sim_.plans_[0], slice);
    lengths_.emplace_back(sim_.plans_[0], has_last ? bytes % slice : slice);

    const auto ranks = sim_.plans_.size();
    ranks_.resize(ranks);
    for (const Simulator::Machine& machine : sim_.machines_) {
      machines_.push_back({.free_cores = machine.cores, .busy = 0, .waiting = {}});
    }
    wires_.resize(sim_.routes_.resources().size());
    slices_.resize(num_slices_);
    done_.resize(num_slices_);
  }

  Prediction run() {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      if (sim_.plans_[rank].ops.empty()) continue;
      for (uint32_t i = 0; i < std::min(window_, num_slices_); ++i) start_slice(rank);
      settle();
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      handle(event);
      settle();
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!sim_.plans_[rank].ops.empty() && ranks_[rank].slices_done < num_slices_) {
        throw Error(ErrorCode::kInvalidArgument, sim_.plans_[rank].algorithm + ": rank " +
                                                     std::to_string(rank) +
                                                     " waits for ever for a message or an op");
      }
    }
    return result();
  }

 private:
  enum class Kind : uint8_t {
    kOffer,    ///< the receiver of a large message hears of it
    kHop,      ///< a message reaches a resource of its path
    kArrival,  ///< its last byte reaches the receiver
    kCpu,      ///< a rank is through with the op it was at
  };

  struct Event {
    double time;
    double end;  ///< kHop: when the last byte has left the resource before
    uint32_t order;
    uint32_t op;  ///< the send; kCpu: any
    uint32_t slice;
    Kind kind;
    uint8_t hop;

    bool operator>(const Event& other) const {
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };

  struct Work {
    uint32_t slice;
    uint32_t op;
  };

  struct Rank {
    std::deque<Work> queue;
    bool has_core = false;
    uint32_t slices_begun = 0;
    uint32_t slices_done = 0;
  };

  struct Machine {
    int free_cores;
    double busy;
    std::deque<uint32_t> waiting;  // ranks
  };

  struct Wire {
    double free = 0;
    double busy = 0;
    double bytes = 0;
  };

  // What a receive has met.
  static constexpr uint8_t kPosted = 1;
  static constexpr uint8_t kOffered = 2;
  static constexpr uint8_t kArrived = 4;

  /// Made when its first rank begins, gone when its last one is through.
  struct Slice {
    std::vector<uint32_t> dependencies_left;  // by op
    std::vector<uint8_t> met;                 // by op
    std::vector<uint32_t> ops_left;           // by rank
    std::vector<double> begin;                // by op, for the timeline
    size_t ranks_left = 0;
  };

  Slice& slice(uint32_t index) {
    std::unique_ptr<Slice>& place = slices_[index];
    if (!place) {
      place = std::make_unique<Slice>();
      place->met.resize(sim_.rank_of_.size());
      if (call_.trace) place->begin.resize(sim_.rank_of_.size());
      place->dependencies_left.reserve(sim_.rank_of_.size());
      for (const Plan& plan : sim_.plans_) {
        for (const Op& op : plan.ops) place->dependencies_left.push_back(op.num_dependencies);
        place->ops_left.push_back(static_cast<uint32_t>(plan.ops.size()));
        if (!plan.ops.empty()) ++place->ranks_left;
      }
    }
    return *place;
  }

  size_t length(uint32_t slice, uint32_t op) const {
    return lengths_[slice + 1 == num_slices_ ? 1 : 0].of(sim_.op(op));
  }

  void push(double time, Kind kind, Work work, uint8_t hop = 0, double end = 0) {
    events_.push({time, end, order_++, work.op, work.slice, kind, hop});
  }

  void start_slice(uint32_t rank) {
    const uint32_t index = ranks_[rank].slices_begun++;
    const Slice& now = slice(index);
    for (uint32_t op = sim_.first_op_[rank]; op < sim_.first_op_[rank + 1]; ++op) {
      if (now.dependencies_left[op] == 0) ready_.push_back({index, op});
    }
  }

  void settle() {
    for (size_t i = 0; i < ready_.size(); ++i) start(ready_[i]);
    ready_.clear();
  }

  void start(Work work) {
    const size_t bytes = length(work.slice, work.op);
    if (bytes == 0) {
      complete(work);
      return;
    }
    if (sim_.op(work.op).kind != OpKind::kRecv) {
      enqueue(work);
      return;
    }
    uint8_t& met = slices_[work.slice]->met[work.op];
    met |= kPosted;
    if ((met & kArrived) != 0) {
      enqueue(work);
    } else if ((met & kOffered) != 0) {
      answer(work.slice, sim_.send_of_[work.op]);
    }
  }

  /// The receiver of an offer asks for the data.
  void answer(uint32_t slice, uint32_t send) {
    push(now_ + sim_.paths_[sim_.messages_[send].route].alpha, Kind::kHop, {slice, send});
  }

  void enqueue(Work work) {
    const uint32_t index = sim_.rank_of_[work.op];
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

  void run_next(uint32_t index, double delay) {
    const Work work = ranks_[index].queue.front();
    const double seconds = delay + sim_.work(work.op, length(work.slice, work.op));
    machine_of(index).busy += seconds;
    if (call_.trace && sim_.op(work.op).kind != OpKind::kRecv) {
      slices_[work.slice]->begin[work.op] = now_;
    }
    push(now_ + seconds, Kind::kCpu, work);
  }

  Machine& machine_of(uint32_t rank) { return machines_[sim_.machine_of(rank)]; }

  void handle(const Event& event) {
    const Work work{event.slice, event.op};
    switch (event.kind) {
      case Kind::kCpu:
        leave_cpu(work);
        return;
      case Kind::kHop:
        hop(event);
        return;
      case Kind::kOffer: {
        uint8_t& met = slice(work.slice).met[sim_.messages_[work.op].receive];
        met |= kOffered;
        if ((met & kPosted) != 0) answer(work.slice, work.op);
        return;
      }
      case Kind::kArrival: {
        const Work receive{work.slice, sim_.messages_[work.op].receive};
        uint8_t& met = slice(work.slice).met[receive.op];
        met |= kArrived;
        if ((met & kPosted) != 0) enqueue(receive);
        if (is_offered(work)) complete(work);
        return;
      }
    }
  }

  void leave_cpu(Work work) {
    const uint32_t index = sim_.rank_of_[work.op];
    Rank& rank = ranks_[index];
    rank.queue.pop_front();
    if (sim_.op(work.op).kind == OpKind::kSend) {
      dispatch(work);
    } else {
      complete(work);
    }
    // What became ready at once comes before another rank gets the core.
    settle();
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
    run_next(next, kSwitchSeconds);
  }

  bool is_offered(Work send) const {
    return !sim_.messages_[send.op].local && message_bytes(send) > Simulator::kEagerBytes;
  }

  double message_bytes(Work send) const {
    return sim_.message_bytes(send.op, length(send.slice, send.op));
  }

  void dispatch(Work send) {
    const Simulator::Message& message = sim_.messages_[send.op];
    const Simulator::Path& path = sim_.paths_[message.route];
    if (is_offered(send)) {
      push(now_ + path.alpha, Kind::kOffer, send);
      return;
    }
    if (message.local) {
      if (call_.trace) slice(send.slice).begin[message.receive] = now_;
      const auto memory = static_cast<size_t>(path.resources[0]);
      wires_[memory].bytes += message_bytes(send);
      push(now_ + path.alpha, Kind::kArrival, send);
    } else {
      push(now_, Kind::kHop, send);
    }
    complete(send);
  }

  void hop(const Event& event) {
    const Simulator::Message& message = sim_.messages_[event.op];
    const Simulator::Path& path = sim_.paths_[message.route];
    const auto resource = static_cast<size_t>(path.resources[event.hop]);
    Wire& wire = wires_[resource];
    const double bytes = message_bytes({event.slice, event.op});
    const double seconds = bytes / sim_.rates_[resource];
    const double begin = std::max(now_, wire.free);
    wire.free = begin + seconds;
    wire.busy += seconds;
    wire.bytes += bytes;
    if (call_.trace && event.hop == 0) slice(event.slice).begin[message.receive] = begin;
    const double end = std::max(event.end, wire.free);
    const auto next = static_cast<uint8_t>(event.hop + 1);
    if (next < path.resources.size()) {
      push(begin, Kind::kHop, {event.slice, event.op}, next, end);
    } else {
      push(end + path.alpha, Kind::kArrival, {event.slice, event.op});
    }
  }

  void complete(Work work) {
    const uint32_t rank = sim_.rank_of_[work.op];
    const uint32_t first = sim_.first_op_[rank];
    const Plan& plan = sim_.plans_[rank];
    Slice& now = *slices_[work.slice];
    if (call_.trace && length(work.slice, work.op) > 0) {
      timeline_.push_back(
          {static_cast<int>(rank), work.slice, work.op - first, now.begin[work.op], now_});
    }
    for (const uint32_t next : plan.successors_of(plan.ops[work.op - first])) {
      if (--now.dependencies_left[first + next] == 0) ready_.push_back({work.slice, first + next});
    }
    if (--now.ops_left[rank] == 0) slice_complete(work.slice, rank);
  }

  void slice_complete(uint32_t index, uint32_t rank) {
    done_[index] = std::max(done_[index], now_);
    if (--slices_[index]->ranks_left == 0) slices_[index].reset();
    ++ranks_[rank].slices_done;
    if (ranks_[rank].slices_begun < num_slices_) start_slice(rank);
  }

  Prediction result() {
    Prediction prediction;
    prediction.first_slice_seconds = done_[0];
    // Slices end in order, up to the window.
    for (size_t i = 1; i < done_.size(); ++i) done_[i] = std::max(done_[i], done_[i - 1]);
    const double more = all_slices_ - num_slices_;
    const double scale = more > 0 ? all_slices_ / num_slices_ : 1;
    for (size_t i = 0; i < wires_.size(); ++i) {
      if (wires_[i].bytes == 0) continue;
      const auto& resource = sim_.routes_.resources()[i];
      prediction.loads.push_back({resource.name, wires_[i].bytes * scale, wires_[i].busy * scale});
    }
    for (size_t i = 0; i < machines_.size(); ++i) {
      const Simulator::Machine& machine = sim_.machines_[i];
      if (machines_[i].busy == 0) continue;
      prediction.loads.push_back(
          {"cores " + machine.name, 0, machines_[i].busy * scale / machine.cores});
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
    prediction.seconds += sim_.selection(call_);
    prediction.timeline = std::move(timeline_);
    return prediction;
  }

  /// In the steady state, in which the busiest resource was in use for `busiest` seconds so far. A
  /// pipeline is as slow as that one.
  double seconds_a_slice(double busiest) const {
    double seen = done_[0] / window_;
    if (num_slices_ >= window_ * kWindows) {
      const size_t last = num_slices_ - window_ - 1;
      seen = (done_[last] - done_[last - window_]) / window_;
    }
    return std::max(busiest / num_slices_, seen);
  }

  const Simulator& sim_;
  const SimulatedCall& call_;
  double now_ = 0;
  uint32_t order_ = 0;
  uint32_t window_ = 1;
  uint32_t num_slices_ = 0;
  double all_slices_ = 0;
  std::vector<PartLengths> lengths_;  // of a full slice, and of the last
  std::vector<Rank> ranks_;
  std::vector<Machine> machines_;
  std::vector<Wire> wires_;
  std::vector<std::unique_ptr<Slice>> slices_;
  std::vector<double> done_;  // by slice: when its last rank was through
  std::vector<Work> ready_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Prediction::Step> timeline_;
};

Prediction Simulator::run(const SimulatedCall& call) const {
  return SimulatedRun(*this, call).run();
}

}  // namespace q7x2
