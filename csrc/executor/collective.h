// CollectiveTask: one collective in progress, a Plan run over the caller's buffers.
//
// The data is cut into slices, and the Plan's DAG runs once for each: a bounded window of slices at
// a time, each with its own dependency counters and scratch memory. An op starts when all it waits
// for is complete; sends and receives complete when UCX says so, copies and reductions run at once
// in the thread that drives the engine, while the data is in its cache. When a slice is complete
// its place in the window goes to the next one, so slices complete in order up to the window.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/types.h"
#include "plan/planner.h"
#include "transport/group.h"
#include "transport/scratch_pool.h"
#include "transport/task.h"

namespace q7x2 {

/// Part of a collective's input or output.
struct Region {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

/// The buffers and the meaning of one collective; see plan/plan.h for how many regions each has.
struct CollectiveCall {
  Collective collective;
  int root = -1;
  /// Flat collectives (all_reduce, reduce, broadcast): one region, the same as `output`. The
  /// others: one a part. Inputs are only read.
  std::vector<Region> input;
  std::vector<Region> output;
  DType dtype = DType::kBytes;  ///< of the elements, where they are reduced
  ReduceKind reduce = ReduceKind::kSum;
  int divisor = 1;  ///< the mean of a sum: the world size
  /// Parts differ in length between ranks, so that a Plan may not depend on them (all_to_all).
  bool uneven = false;
  std::string title;  ///< how the caller calls it, for messages; empty: the collective's name
};

class CollectiveTask final : public Task {
 public:
  /// The memory in `call` must stay until `keep_alive` is dropped, which happens when the task
  /// goes.
  CollectiveTask(std::shared_ptr<Group> group, Planner& planner, CollectiveCall call,
                 std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout);
  ~CollectiveTask() override;

  std::string name() const override;
  const std::string& algorithm() const { return choice_.plan->algorithm; }

 protected:
  void start() override;
  void completed(uint32_t token, size_t length, uint64_t tag) override;
  void truncated(uint32_t token, uint64_t tag) override;
  void stranded(const Error& error) override { end_group(error); }
  void timed_out() override;
  bool takes_turn() const override { return true; }

 private:
  /// A slice in progress.
  struct Place {
    size_t slice = 0;
    uint32_t ops_left = 0;
    std::vector<uint32_t> dependencies_left;  // by op
    ScratchPool::Buffer scratch;
  };

  void start_slice(uint32_t place);
  void run(uint32_t place, uint32_t op);
  /// Counts `op` complete and runs what waited for it, until nothing more can run.
  void complete(uint32_t place, uint32_t op);
  void run_ready();
  Region region(const Place& place, const Block& block, size_t length) const;
  /// The part's place in its slice.
  Region part(const Block& block, size_t slice) const;
  uint64_t fingerprint() const;
  void mismatch(int peer);
  /// A collective that went wrong leaves the ranks out of step: the whole group fails.
  void end_group(const Error& error);

  CollectiveCall call_;
  std::shared_ptr<void> keep_alive_;
  Choice choice_;
  size_t num_slices_ = 0;
  size_t next_slice_ = 0;
  size_t slices_done_ = 0;
  uint64_t fingerprint_ = 0;
  std::vector<Place> places_;
  std::vector<std::pair<uint32_t, uint32_t>> ready_;  // (place, op) that may run
  bool running_ready_ = false;
};

}  // namespace q7x2
