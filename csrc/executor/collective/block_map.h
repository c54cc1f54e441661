// BlockMap: where the blocks of the slices in progress are.
//
// A slice in progress has a place in the window, with its own scratch memory and room for its
// messages. A receive through shared memory into a scratch block copies nothing: the block *is* the
// sender's memory until the slice is complete, or until something else is written to the block. The
// same holds for coded blocks. What ranks of this host receive is in this rank's shared memory
// (executor/collective/shared_staging.h): either the send copies its block there, or the op that
// makes the block writes it there.
//
// All functions are called under the reactor's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <utility>
#include <vector>

#include "executor/collective/call_run.h"
#include "executor/collective/shared_staging.h"
#include "plan/ir/dag_window.h"
#include "transport/shm/shm_channel.h"

namespace q7x2 {

class Group;
class GroupMessages;

class BlockMap {
 public:
  using Memory = std::pmr::memory_resource;
  using Step = DagWindow::Step;
  /// Whether a stage of a slice contains its block.
  enum class StageState : uint8_t { kNo, kOnItsWay, kYes };

  /// `run` and `memory` must outlive it.
  BlockMap(const CallRun& run, Memory* memory)
      : run_(run), memory_(memory), staging_(memory), slices_(memory) {}
  /// Frees what is left after an error. It cannot go to the ScratchPool, which needs the lock.
  ~BlockMap();
  BlockMap(const BlockMap&) = delete;
  BlockMap& operator=(const BlockMap&) = delete;

  /// Stages what ranks of this host receive. The call must have a Plan.
  void share(const Group& group) { staging_ = SharedStaging(run_.plan(), group, memory_); }
  const SharedStaging& staging() const { return staging_; }
  SharedStaging& staging() { return staging_; }

  /// Allocates the memory of all places. Called before the first slice.
  void allocate(const Residence::Run& run, size_t places, ScratchPool& pool);
  bool is_allocated() const { return !slices_.empty(); }
  /// Slice number `slice` takes a place.
  void open(uint32_t place, size_t slice);
  size_t slice(uint32_t place) const { return slices_[place].number; }
  /// Returns what other ranks have staged for the slice, or for all slices. Called when the slice
  /// is complete, or the call has failed.
  void release_held(Locked& locked, uint32_t place, GroupMessages& messages);
  void release_held(Locked& locked, GroupMessages& messages);
  /// Returns the memory to the pool. Called after the last slice.
  void free(ScratchPool& pool);

  /// Where a block is. `length`: bytes of its elements; a coded block has the length of its
  /// message.
  Region region(uint32_t place, const Block& block, size_t length) const {
    const Slice& slice = slices_[place];
    if (block.is_coded()) return slice.coded_at[block.index];
    if (block.space == Space::kScratch) return {slice.scratch_at[block.index], length};
    return run_.slicing().part(block, slice.number);
  }
  /// The same for a block that is about to be overwritten: a scratch block gets its own memory
  /// again.
  Region writable(uint32_t place, const Block& block, size_t length) {
    if (block.space == Space::kScratch) {
      slices_[place].scratch_at[block.index] = own_scratch(place, block.index);
    }
    return region(place, block, length);
  }
  std::byte* own_scratch(uint32_t place, size_t index) const {
    return slices_[place].own.blocks + index * run_.choice().part_bytes;
  }
  /// Room for the message of a coded block.
  Region room_for_message(uint32_t place, size_t index) const {
    const size_t most = run_.coder()->max_bytes();
    return {slices_[place].own.messages + index * most, most};
  }
  /// From now on the block is at `region`. Only a coded block needs the length.
  void move(uint32_t place, const Block& block, Region region) {
    if (block.is_coded()) {
      slices_[place].coded_at[block.index] = region;
    } else {
      slices_[place].scratch_at[block.index] = region.data;
    }
  }

  StageState stage(Step step) const { return slices_[step.place].staged[run_.op(step.op).stage]; }
  void set_stage(Step step, StageState state) {
    slices_[step.place].staged[run_.op(step.op).stage] = state;
  }
  /// An op is about to write to its stage: returns the address. Null: its block has no stage.
  std::byte* begin_stage(Step step) {
    const Op& op = run_.op(step.op);
    if (!staging_.carries(op)) return nullptr;
    set_stage(step, StageState::kOnItsWay);
    return staging_.at(step.place, op);
  }
  /// An op is complete: if it wrote to its stage, the stage now contains the block.
  void end_stage(Step step) {
    const auto& staged = slices_[step.place].staged;
    const uint16_t stage = run_.op(step.op).stage;
    if (stage != Op::kNoStage && !staged.empty() && staged[stage] == StageState::kOnItsWay) {
      set_stage(step, StageState::kYes);
    }
  }

  /// The slice uses a message of `source` until the slice is complete, or until `let_go`.
  void hold(uint32_t place, int source, const ShmChannel::Message& message) {
    slices_[place].held.emplace_back(source, message);
  }
  void let_go(uint32_t place, int source, const ShmChannel::Message& message);

 private:
  struct Slice {
    explicit Slice(Memory* memory)
        : staged(memory), scratch_at(memory), coded_at(memory), held(memory) {}

    size_t number = 0;
    // Memory of its scratch and coded blocks.
    Residence::Memory own;
    std::pmr::vector<StageState> staged;                         // by stage
    std::pmr::vector<std::byte*> scratch_at;                     // by scratch block
    std::pmr::vector<Region> coded_at;                           // by coded block: its message
    std::pmr::vector<std::pair<int, ShmChannel::Message>> held;  // by source
  };

  const CallRun& run_;
  Memory* const memory_;
  SharedStaging staging_;
  std::pmr::vector<Slice> slices_;  // by place
};

}  // namespace q7x2
