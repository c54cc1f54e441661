// CollectiveTask: one collective in progress, a Plan run over the caller's buffers.
//
// The data is cut into slices, and the Plan's DAG runs once for each: a bounded window of slices at
// a time, each with its own dependency counters and scratch memory. An op starts when all it waits
// for is complete; sends and receives complete when UCX says so, copies and reductions run at once
// in the thread that drives the engine, while the data is in its cache. The window slides: slice k
// starts when slice k - window is complete, so slices complete in order up to the window.
//
// Between ranks that share memory a send copies its block into this rank's arena, once for all its
// receivers, and is complete. A receive into a scratch block moves nothing: until the slice is
// complete, or something else is written to it, the block *is* the sender's memory. So it is with
// coded blocks, and what is encoded for ranks of this host is encoded into the arena. A place in
// the window is used again when all receivers are done with what was staged for its slice.
//
// Where a codec balances the parts of an all-reduce, an all-reduce of counts runs before it, and
// says how it is cut (plan/owner_ranges.h). Until then the task waits for its turn.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "executor/block_coder.h"
#include "plan/owner_ranges.h"
#include "plan/planner.h"
#include "transport/group.h"
#include "transport/host_channel.h"
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
  /// Compressed, if it has a codec: all_reduce, reduce_scatter and all_gather of floats.
  Coding coding;
  /// Parts differ in length between ranks, so that a Plan may not depend on them (all_to_all).
  bool uneven = false;
  /// What else the ranks must agree on and the executor need not know: the caller's element type.
  uint32_t agreed = 0;
  std::string algorithms;  ///< see CallShape
  std::string title;       ///< how the caller calls it, for messages; empty: the collective's name
};

/// What the planner is asked for it.
CallShape shape_of(const CollectiveCall& call, const Planner& planner);

class CollectiveTask final : public Task {
 public:
  /// The tasks that a call takes, to be submitted in their order; the last one is its own. For the
  /// arguments see the constructor.
  static std::vector<std::shared_ptr<CollectiveTask>> make(std::shared_ptr<Group> group,
                                                           Planner& planner, CollectiveCall call,
                                                           std::shared_ptr<void> keep_alive,
                                                           std::chrono::milliseconds timeout);

  /// The memory in `call` must stay until `keep_alive` is dropped, which happens when the task
  /// goes. With a codec that selects, reads the whole input at once, in the caller's thread.
  CollectiveTask(std::shared_ptr<Group> group, Planner& planner, CollectiveCall call,
                 std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout);
  ~CollectiveTask() override;

  std::string name() const override;
  const std::string& algorithm() const { return choice_.plan->algorithm; }

 protected:
  void start() override;
  void completed(uint32_t token, size_t length, uint64_t tag) override;
  void arrived(uint32_t token, const HostChannel::Message& message) override;
  void truncated(uint32_t token, uint64_t tag) override;
  void stranded(const Error& error) override { end_group(error); }
  void timed_out() override;
  bool takes_turn() const override { return true; }
  bool reserve() override;
  bool stalled() override;

 private:
  /// A slice in progress.
  struct Place {
    size_t slice = 0;
    uint32_t ops_left = 0;
    std::vector<uint32_t> dependencies_left;  // by op
    ScratchPool::Buffer scratch;
    // Shared memory:
    int ticket = HostChannel::kNoTicket;
    std::byte* staging = nullptr;
    std::vector<bool> staged;            // by stage: the block has been copied
    std::vector<std::byte*> scratch_at;  // by scratch block: where it lies now
    std::vector<Region> coded_at;        // by coded block: its message
    std::vector<std::pair<int, HostChannel::Message>>
        held;  // (source, message), until the slice ends
  };

  /// Starts slices as far as the window goes.
  void start_slices();
  void start_slice(uint32_t place);
  void copy(Place& place, const Op& op, size_t length);
  void fold(Place& place, const Op& op, size_t length);
  void fold_coded(Place& place, const Op& op, size_t length);
  void send(uint32_t place, uint32_t op, size_t length);
  void receive(uint32_t place, uint32_t op, size_t length);
  /// Gives a message in shared memory to its op.
  void take(uint32_t place, uint32_t op, const HostChannel::Message& message);
  size_t wanted_places() const;
  std::byte* own_scratch(const Place& place, size_t index) const;
  std::byte* own_coded(const Place& place, size_t index) const;
  /// Where the message that `op` makes is to be put.
  std::byte* message_of(Place& place, const Op& op);
  bool is_staged(const Op& op) const;
  /// Where the bytes of a staged op lie in shared memory.
  std::byte* stage_of(const Place& place, const Op& op) const;
  void find_shared_stages();
  BlockCoder::Place coding_place(const Block& part, size_t slice) const;
  /// Passes over the tensor as the codec wants it, and counts what is sent where parts are
  /// balanced.
  void select();
  bool is_balanced() const;
  bool cut_by_counts();
  template <class Body>
  void decoding(Body body);
  /// `is_shared`: it came through shared memory.
  bool is_expected(const Place& place, const Op& op, uint64_t tag, size_t length,
                   bool is_shared) const;
  void run(uint32_t place, uint32_t op);
  /// Counts `op` complete and runs what waited for it, until nothing more can run.
  void complete(uint32_t place, uint32_t op);
  void run_ready();
  /// `length`: of the block's elements; a coded block is as long as its message.
  Region region(const Place& place, const Block& block, size_t length) const;
  /// The same for a block that is about to be overwritten.
  Region writable(Place& place, const Block& block, size_t length) const;
  /// The whole of a part of the input or output.
  const Region& whole(const Block& block) const;
  /// The part's place in its slice.
  Region part(const Block& block, size_t slice) const;
  /// The index of a part's first element in its region.
  size_t first_element(const Block& block, size_t slice) const;
  /// The same in a flat buffer; that of one part more is where the slice ends.
  size_t flat_begin(size_t slice, size_t part) const;
  /// The bytes of what it counts.
  size_t flat_element() const;
  size_t longest_part() const { return choice_.part_bytes / element_size(call_.dtype); }
  /// Of the call.
  uint64_t fingerprint() const;
  /// Of the messages of one op.
  uint64_t fingerprint(const Op& op) const;
  void mismatch(int peer);
  /// False, and the group ends, where `region` is shorter than the op that is to use it.
  bool covers(const Region& region, size_t length);
  /// A collective that went wrong leaves the ranks out of step: the whole group fails.
  void end_group(const Error& error);

  CollectiveCall call_;
  std::shared_ptr<void> keep_alive_;
  Choice choice_;
  std::optional<BlockCoder> coder_;
  std::shared_ptr<std::vector<int32_t>> counts_;  // where parts are balanced: of what is sent
  std::shared_ptr<const Task> counting_;          // adds them over all ranks
  std::optional<OwnerRanges> ranges_;             // from those
  size_t bytes_ = 0;                              // of the longest region
  size_t num_slices_ = 0;
  size_t next_slice_ = 0;
  size_t slices_done_ = 0;  // all slices before this one are complete
  std::optional<HostChannel::Staging> staging_;
  std::vector<int> tickets_;  // by place
  size_t stage_bytes_ = 0;
  std::vector<uint16_t> shared_stage_;  // by stage: its number among those in shared memory, if any
  uint16_t num_shared_stages_ = 0;
  bool is_stalled_ = false;
  uint64_t fingerprint_ = 0;
  std::vector<Place> places_;
  std::vector<std::pair<uint32_t, uint32_t>> ready_;  // (place, op) that may run
  bool running_ready_ = false;
};

}  // namespace q7x2
