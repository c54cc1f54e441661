// SimulatedRun: one run of a Simulator: the clock, and what is in progress at its time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "plan/cost/event_queue.h"
#include "plan/cost/fifo.h"
#include "plan/cost/model.h"
#include "plan/cost/part_lengths.h"
#include "plan/cost/simulated_plans.h"
#include "plan/cost/sliding_window.h"
#include "plan/ir/dag_window.h"

namespace q7x2 {

class SimulatedRun {
 public:
  /// Both must stay.
  SimulatedRun(const SimulatedPlans& plans, const SimulatedCall& call);

  /// See Simulator::run and Simulator::run_symmetric. To be called once.
  std::optional<Prediction> run();

 private:
  enum class Kind : uint8_t {
    kHop,      ///< a message reaches a resource of its path
    kArrival,  ///< its last byte reaches the receiver
    kCpu,      ///< a rank is through with the op it was at
  };

  struct Event {
    uint32_t op;  ///< the send; kCpu: any
    uint32_t slice;
    double end;  ///< kHop: when the last byte has left the resource before
    Kind kind;
    uint8_t hop;
  };

  /// An op, counted through all ranks, in one slice.
  struct Work {
    uint32_t slice;
    uint32_t op;
  };

  struct Rank {
    DagWindow dag;
    Fifo<Work> queue;  // for the CPU; the first one is being run if the rank has a core
    bool has_core = false;
  };

  struct Machine {
    int free_cores;
    double busy;
    Fifo<uint32_t> waiting;  // ranks
  };

  /// From one host to another, after a silence.
  struct Connection {
    double began = 0;
    double bytes = 0;
  };

  struct Wire {
    double free = 0;
    double burst = 0;  // bytes that it would let pass at once, when it was free last
    double busy = 0;
    double bytes = 0;
  };

  // More than these have one turn.
  static constexpr uint32_t kMostOps = (1U << 20) - 1;
  static constexpr uint32_t kMostSlices = (1U << 12) - 1;

  // What a receive has met.
  static constexpr uint8_t kPosted = 1;
  static constexpr uint8_t kArrived = 2;

  /// The messages of a slice. Made when its first rank begins or is sent one, gone when its last
  /// rank is through.
  struct Slice {
    std::vector<uint8_t> met;   // by op
    std::vector<double> begin;  // by op, for the timeline
    size_t ranks_left = 0;
  };

  Slice& slice(uint32_t index);
  size_t length(uint32_t slice, uint32_t op) const {
    return lengths_[slice + 1 == num_slices_ ? 1 : 0].of(plans_.tasks[op].part);
  }
  double message_bytes(Work send) const {
    return plans_.message_bytes(send.op, length(send.slice, send.op));
  }
  Machine& machine_of(uint32_t rank) { return machines_[plans_.machine_of(rank)]; }

  /// Begins slices as far as the window goes.
  void admit(uint32_t rank);
  /// Starts what is ready.
  void settle(uint32_t rank);
  void start(Work work);
  void complete(Work work);
  void slice_complete(uint32_t index, uint32_t rank);

  // Streams of events; see EventQueue.
  size_t num_streams() const { return delayed(static_cast<uint32_t>(plans_.costs.size())); }
  size_t cpu_of(uint32_t rank) const { return rank; }
  size_t leaving(size_t resource) const { return ranks_.size() + 2 * resource; }
  size_t arriving(size_t resource) const { return leaving(resource) + 1; }
  size_t at_once() const { return leaving(wires_.size()); }
  size_t delayed(uint32_t cost) const { return at_once() + 1 + cost; }

  void push(size_t stream, double time, Kind kind, Work work, uint8_t hop = 0, double end = 0) {
    events_.push(stream, time, turn_of(work), {work.op, work.slice, end, kind, hop});
  }
  /// If events have the same time, the one with the smaller turn is first: earlier slices, then ops
  /// that come earlier in their Plan, then what the ranks are to each other. Turning all ranks
  /// changes none of them. Without a Symmetry all have one turn, and the order in which they came
  /// up decides.
  uint64_t turn_of(Work work) const {
    if (turns_.empty()) return 0;
    const SimulatedPlans::Task& task = plans_.tasks[work.op];
    const uint32_t op = std::min(work.op - plans_.first_task[task.rank], kMostOps);
    return uint64_t{std::min(work.slice, kMostSlices)} << 52 | uint64_t{op} << 32 | turns_[work.op];
  }
  /// By op: how far its message goes, and the position of its rank.
  std::vector<uint32_t> turns() const;
  /// The place of each member among those that share cables with it, or cores if there are none.
  std::vector<uint32_t> positions() const;
  void handle(const Event& event);

  // Messages.
  void dispatch(Work send);
  /// When the last byte leaves its host, by what TCP allows.
  double slow_start(const SimulatedPlans::Task& message, double bytes);
  /// The window of a connection lets a message pass.
  void pass_window(const Event& event, SlidingWindow& window);
  void hop(const Event& event);

  // CPU.
  void enqueue(Work work);
  void run_next(uint32_t index, double delay);
  void leave_cpu(Work work);

  Prediction result();
  /// In the steady state, in which the busiest resource was in use for `busiest` seconds so far. A
  /// pipeline is as slow as that one.
  double seconds_a_slice(double busiest) const;

  const SimulatedPlans& plans_;
  const SimulatedCall& call_;
  double now_ = 0;
  uint32_t window_ = 1;
  uint32_t num_slices_ = 0;
  double all_slices_ = 0;
  std::vector<PartLengths> lengths_;  // those of a full slice, and of the last one
  std::vector<Rank> ranks_;
  std::vector<Machine> machines_;
  std::vector<Wire> wires_;
  std::vector<Connection> connections_;                // by path; empty: they are warm
  std::unordered_map<size_t, SlidingWindow> windows_;  // by resource
  std::vector<uint32_t> turns_;
  std::vector<std::unique_ptr<Slice>> slices_;
  std::vector<double> done_;  // by slice: when its last rank was through
  EventQueue<Event> events_;
  std::vector<Prediction::Step> timeline_;
};

}  // namespace q7x2
