#include "ledger/flight_archive.h"

#include <utility>

namespace q7x2 {

namespace {

// Never destroyed: a runtime may end after everything else.
FlightArchive* archive = new FlightArchive;

}  // namespace

FlightArchive& FlightArchive::of_process() {
  return *archive;
}

void FlightArchive::begin_again() {
  archive = new FlightArchive;
}

void FlightArchive::keep(const FlightBatch& counters, FlightSnapshot&& records) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Counted>& groups = counters_.groups;
  std::erase_if(groups, [&](const Counted& each) { return each.process == counters.process; });
  for (const FlightBatch::Counted& each : counters.counters) {
    groups.push_back({counters.process, counters.groups.at(each.group), each.counters});
    groups.back().group.is_open = false;
  }
  if (groups.size() > kMostGroups) {
    groups.erase(groups.begin(), groups.end() - static_cast<ptrdiff_t>(kMostGroups));
  }
  if (counters.counted_since != 0) {
    counters_.since = counters.wall_now - (counters.steady_now - counters.counted_since);
  }
  records_ = std::move(records);
}

FlightArchive::Counters FlightArchive::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

void FlightArchive::forget_counters(int64_t now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_ = {.since = now, .groups = {}};
}

std::optional<FlightSnapshot> FlightArchive::records() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return records_;
}

}  // namespace q7x2
