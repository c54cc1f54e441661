#include "executor/collective/shared_staging.h"

#include "transport/group/group.h"

namespace q7x2 {

SharedStaging::SharedStaging(const Plan& plan, const Group& group,
                             std::pmr::memory_resource* memory)
    : shared_(plan.num_stages, Op::kNoStage, memory), tickets_(memory) {
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::kSend && shared_[op.stage] == Op::kNoStage &&
        group.messages().shares_memory(op.peer)) {
      shared_[op.stage] = num_shared_++;
    }
  }
}

bool SharedStaging::reserve(ShmChannel& channel, size_t places, size_t stage_bytes) {
  channel_ = &channel;
  stage_bytes_ = stage_bytes;
  for (; places > 0; places /= 2) {
    memory_ = channel.reserve(places * num_shared_ * stage_bytes);
    if (!memory_) continue;
    while (tickets_.size() < places) {
      const std::optional<int> ticket = channel.take_ticket();
      if (!ticket) break;
      tickets_.push_back(*ticket);
    }
    if (!tickets_.empty()) return true;
    channel.free(*memory_);
    memory_.reset();
  }
  return false;
}

void SharedStaging::retire(Locked& locked, Group& group) {
  group.messages().retire_staging(locked, *memory_, {tickets_.begin(), tickets_.end()});
  tickets_.clear();
  memory_.reset();
}

}  // namespace q7x2
