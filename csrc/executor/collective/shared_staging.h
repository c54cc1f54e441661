// SharedStaging: the shared memory in which a collective stages what ranks of its host receive.
//
// Each place in the window has room for one block per stage, and a ticket
// (transport/shm/shm_channel.h). The ticket says when all receivers have read what was staged
// there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <vector>

#include "plan/ir/plan.h"
#include "transport/shm/shm_channel.h"

namespace q7x2 {

class Group;
class Locked;

class SharedStaging {
 public:
  /// `memory` must outlive it.
  explicit SharedStaging(std::pmr::memory_resource* memory) : shared_(memory), tickets_(memory) {}
  /// Only stages that ranks of this host receive have room.
  SharedStaging(const Plan& plan, const Group& group, std::pmr::memory_resource* memory);

  /// Whether a stage needs room.
  bool is_needed() const { return num_shared_ > 0; }
  /// Takes room for at most `places` places with blocks of `stage_bytes`, and for fewer if memory
  /// is short. Returns false if there is no room now. The functions below require that it has
  /// succeeded, see `operator bool`.
  bool reserve(ShmChannel& channel, size_t places, size_t stage_bytes);
  explicit operator bool() const { return memory_.has_value(); }
  /// Hands the memory and the tickets to the group, which frees them when they are returned.
  void retire(Locked& locked, Group& group);

  size_t places() const { return tickets_.size(); }
  int ticket(uint32_t place) const { return tickets_[place]; }
  /// Whether all receivers have read what was staged in the place.
  bool is_returned(uint32_t place) const { return channel_->is_returned(tickets_[place]); }

  /// Whether an op's stage has room here.
  bool carries(const Op& op) const {
    return op.stage != Op::kNoStage && memory_ && shared_[op.stage] != Op::kNoStage;
  }
  /// The room for the op's stage.
  std::byte* at(uint32_t place, const Op& op) const {
    const size_t index = size_t{place} * num_shared_ + shared_[op.stage];
    return channel_->arena() + memory_->offset + index * stage_bytes_;
  }

 private:
  std::pmr::vector<uint16_t> shared_;  // by stage: its index among those with room
  uint16_t num_shared_ = 0;
  ShmChannel* channel_ = nullptr;
  size_t stage_bytes_ = 0;
  std::optional<ShmChannel::Staging> memory_;
  std::pmr::vector<int> tickets_;  // by place
};

}  // namespace q7x2
