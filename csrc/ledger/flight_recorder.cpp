#include "ledger/flight_recorder.h"

#include <cstdlib>
#include <set>
#include <utility>

#include "base/parse_number.h"

namespace q7x2 {
namespace {

// When a group is opened and this many are known, closed groups are removed.
constexpr size_t kManyGroups = 32;
constexpr size_t kLine = 64;

}  // namespace

int64_t FlightSnapshot::job_rank() const {
  if (const char* const text = std::getenv("RANK")) {
    const auto rank = parse_number<int64_t>(text);
    if (rank && *rank >= 0) return *rank;
  }
  if (groups.empty()) return -1;
  const FlightGroup& first = groups.begin()->second;
  return static_cast<int64_t>(first.members[static_cast<size_t>(first.rank)].job_rank);
}

// Memory for failures is allocated in advance, because a failure may be a lack of memory.
FlightRecorder::FlightRecorder(size_t capacity)
    : ring_(capacity), failures_(capacity > 0 ? kFailures : 0) {}

uint32_t FlightRecorder::open(FlightGroup group) {
  if (!is_enabled()) return 0;
  if (groups_.size() >= kManyGroups) forget_closed_groups();
  counters_.emplace(last_group_ + 1, std::make_unique<GroupCounters>());
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
  std::erase_if(counters_, [&](const auto& each) { return !groups_.contains(each.first); });
  counting_group_ = 0;
  counting_ = nullptr;
}

FlightRecord& FlightRecorder::add() {
  FlightRecord& record = ring_[recorded_ % ring_.size()];
  record = {};
  record.id = ++recorded_;
  // The next record has left the cache since it was written; this prefetches it for the next
  // operation.
  const auto* next = reinterpret_cast<const std::byte*>(&ring_[recorded_ % ring_.size()]);
  for (size_t offset = 0; offset < sizeof(FlightRecord); offset += kLine) {
    __builtin_prefetch(next + offset, /*write=*/1);
  }
  return record;
}

const FlightRecord* FlightRecorder::find_call(uint32_t group, uint64_t sequence) const {
  bool is_known = false;
  const FlightRecord* call = nullptr;  // the first one with at least that number
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

void FlightRecorder::count(const FlightRecord& record) {
  if (record.group != counting_group_ || counting_ == nullptr) {
    const auto found = counters_.find(record.group);
    if (found == counters_.end()) return;
    counting_group_ = record.group;
    counting_ = found->second.get();
  }
  counting_->add(record);
}

const GroupCounters* FlightRecorder::find_counters(uint32_t group) const {
  const auto found = counters_.find(group);
  return found == counters_.end() ? nullptr : found->second.get();
}

void FlightRecorder::reset_counters(int64_t now) {
  for (auto& [group, counters] : counters_) *counters = {};
  counted_since_ = now;
}

FlightWaits& FlightRecorder::add_waits(uint64_t id) {
  Failure& failure = failures_[next_failure_];
  next_failure_ = (next_failure_ + 1) % failures_.size();
  failure.id = id;
  failure.waits = {};
  return failure.waits;
}

void FlightRecorder::copy_to(FlightSnapshot& copy) const {
  copy.capacity = ring_.size();
  copy.recorded = recorded_;
  copy.groups = groups_;
  copy.names = names_;
  if (ring_.empty()) return;
  const size_t count = std::min<uint64_t>(recorded_, ring_.size());
  for (uint64_t i = recorded_ - count; i < recorded_; ++i) {
    copy.records.push_back(ring_[i % ring_.size()]);
  }
  for (const Failure& failure : failures_) {
    if (failure.id != 0 && failure.id > recorded_ - count) {
      copy.waits.emplace(failure.id, failure.waits);
    }
  }
}

}  // namespace q7x2
