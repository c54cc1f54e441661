#include "ledger/flight_recorder.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

namespace q7x2 {
namespace {

// Closed groups are looked for when a group is opened and so many are known.
constexpr size_t kManyGroups = 32;
constexpr size_t kLine = 64;

}  // namespace

int64_t FlightSnapshot::job_rank() const {
  if (const char* const text = std::getenv("RANK")) {
    const char* const end = text + std::strlen(text);
    int64_t rank = -1;
    const auto [rest, error] = std::from_chars(text, end, rank);
    if (error == std::errc() && rest == end && rank >= 0) return rank;
  }
  if (groups.empty()) return -1;
  const FlightGroup& first = groups.begin()->second;
  return static_cast<int64_t>(first.members[static_cast<size_t>(first.rank)].job_rank);
}

FlightRecorder::FlightRecorder(size_t capacity) : ring_(capacity) {}

uint32_t FlightRecorder::open(FlightGroup group) {
  if (!is_enabled()) return 0;
  if (groups_.size() >= kManyGroups) forget_closed_groups();
  groups_.emplace(++last_group_, std::move(group));
  return last_group_;
}

void FlightRecorder::close(uint32_t group) {
  if (FlightGroup* const known = find_group(group)) known->is_open = false;
}

FlightGroup* FlightRecorder::find_group(uint32_t group) {
  const auto found = groups_.find(group);
  return found == groups_.end() ? nullptr : &found->second;
}

void FlightRecorder::forget_closed_groups() {
  std::set<uint32_t> used;
  for (const FlightRecord& record : ring_) used.insert(record.group);
  std::erase_if(groups_, [&](const auto& each) {
    return !each.second.is_open && !used.contains(each.first);
  });
}

FlightRecord& FlightRecorder::add() {
  FlightRecord& record = ring_[recorded_ % ring_.size()];
  static_cast<FlightHead&>(record) = {};
  record.id = ++recorded_;
  // It has left the cache since it was written last; by the next operation it is back.
  const auto* next = reinterpret_cast<const std::byte*>(&ring_[recorded_ % ring_.size()]);
  for (size_t offset = 0; offset < sizeof(FlightHead); offset += kLine) {
    __builtin_prefetch(next + offset, /*write=*/1);
  }
  return record;
}

const FlightRecord* FlightRecorder::find_call(uint32_t group, uint64_t sequence) const {
  bool is_known = false;
  const FlightRecord* call = nullptr;  // the first from that number on
  for (const FlightRecord& record : ring_) {
    const bool is_of_group = record.id != 0 && record.group == group &&
                             record.kind == FlightRecord::Kind::kCollective &&
                             record.state != FlightRecord::State::kSubmitted;
    if (!is_of_group || record.sequence < sequence) continue;
    is_known |= record.sequence == sequence;
    if (!record.is_internal && (call == nullptr || record.sequence < call->sequence)) {
      call = &record;
    }
  }
  return is_known ? call : nullptr;
}

void FlightRecorder::copy_to(std::vector<FlightRecord>& records) const {
  if (ring_.empty()) return;
  const size_t count = std::min<uint64_t>(recorded_, ring_.size());
  for (uint64_t i = recorded_ - count; i < recorded_; ++i) {
    records.push_back(ring_[i % ring_.size()]);
  }
}

}  // namespace q7x2
