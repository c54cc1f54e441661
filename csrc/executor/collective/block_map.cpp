#include "executor/collective/block_map.h"

#include "transport/group/group.h"
#include "transport/run/scratch_pool.h"

namespace q7x2 {

BlockMap::~BlockMap() {
  for (const Slice& slice : slices_) {
    ScratchPool::destroy(slice.own.pooled);
  }
}

void BlockMap::allocate(const Residence::Run& run, size_t places, ScratchPool& pool) {
  const Plan& plan = run_.plan();
  slices_.reserve(places);
  for (size_t place = 0; place < places; ++place) {
    Slice& slice = slices_.emplace_back(memory_);
    slice.scratch_at.resize(plan.num_scratch);
    slice.coded_at.resize(plan.num_coded);
    if (staging_) slice.staged.resize(plan.num_stages);
    slice.own = run_.residence().memory(run, place, pool);
  }
}

void BlockMap::open(uint32_t place, size_t number) {
  Slice& slice = slices_[place];
  slice.number = number;
  slice.staged.assign(slice.staged.size(), StageState::kNo);
  for (size_t i = 0; i < slice.scratch_at.size(); ++i) {
    slice.scratch_at[i] = own_scratch(place, i);
  }
  for (size_t i = 0; i < slice.coded_at.size(); ++i) {
    slice.coded_at[i] = {room_for_message(place, i).data, 0};
  }
}

void BlockMap::release_held(Locked& locked, uint32_t place, GroupMessages& messages) {
  auto& held = slices_[place].held;
  for (const auto& [source, message] : held) {
    messages.release_message(locked, source, message);
  }
  held.clear();
}

void BlockMap::release_held(Locked& locked, GroupMessages& messages) {
  for (uint32_t place = 0; place < slices_.size(); ++place) {
    release_held(locked, place, messages);
  }
}

void BlockMap::free(ScratchPool& pool) {
  for (const Slice& slice : slices_) {
    pool.release(slice.own.pooled);
  }
  slices_.clear();
}

void BlockMap::let_go(uint32_t place, int source, const ShmChannel::Message& message) {
  std::erase_if(slices_[place].held, [&](const auto& held) {
    return held.first == source && held.second.staged == message.staged;
  });
}

}  // namespace q7x2
