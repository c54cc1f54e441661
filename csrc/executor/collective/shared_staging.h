// SharedStaging: the shared memory in which a collective stages what ranks of its host receive.
//
// Each place in the window has room for one block per stage, and a ticket
// (transport/shm/shm_channel.h) that says when the receivers are done with what was staged there.
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
  /// `memory` must stay.
  explicit SharedStaging(std::pmr::memory_resource* memory) : shared_(memory), tickets_(memory) {}
  /// Only stages that ranks of this host receive need room.
  SharedStaging(const Plan& plan, const Group& group, std::pmr::memory_resource* memory);

  /// Some stage needs room.
  bool is_needed() const { return num_shared_ > 0; }
  /// Takes room for at most `places` places with blocks of `stage_bytes`, for fewer where there is
  /// less. False: there is none now. All below only after it has succeeded, see `operator bool`.
  bool reserve(ShmChannel& channel, size_t places, size_t stage_bytes);
  explicit operator bool() const { return memory_.has_value(); }
  /// Hands the memory and the tickets to the group, which frees them when they are returned.
  void retire(Locked& locked, Group& group);

  size_t places() const { return tickets_.size(); }
  int ticket(uint32_t place) const { return tickets_[place]; }
  /// Nobody reads any more what was staged in the place.
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
  std::pmr::vector<uint16_t>
      shared_;  // by stage: its number among those that need room, if it does
  uint16_t num_shared_ = 0;
  ShmChannel* channel_ = nullptr;
  size_t stage_bytes_ = 0;
  std::optional<ShmChannel::Staging> memory_;
  std::pmr::vector<int> tickets_;  // by place
};

}  // namespace q7x2
