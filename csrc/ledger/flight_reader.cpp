#include "ledger/flight_reader.h"

namespace q7x2 {

void FlightReader::pass_on(FlightBatch& batch, const FlightRecord& record) const {
  const NameTable& names = recorder_.names();
  batch.operations.push_back(
      {record, std::string(names.name_of(record.plan)), std::string(names.name_of(record.codec))});
}

void FlightReader::read_pending(FlightBatch& batch) {
  std::erase_if(pending_, [&](uint64_t id) {
    const FlightRecord* const record = recorder_.find(id);
    if (record == nullptr) {
      ++lost_;
    } else if (record->finished != 0) {
      pass_on(batch, *record);
    } else {
      return false;
    }
    return true;
  });
}

bool FlightReader::read_new(FlightBatch& batch, size_t most) {
  const uint64_t recorded = recorder_.recorded();
  if (recorded >= recorder_.capacity() + next_) {
    const uint64_t oldest = recorded - recorder_.capacity() + 1;
    lost_ += oldest - next_;
    next_ = oldest;
  }
  for (size_t looked = 0; next_ <= recorded && looked < most; ++looked, ++next_) {
    const FlightRecord* const record = recorder_.find(next_);
    if (record->finished != 0) {
      pass_on(batch, *record);
    } else {
      pending_.push_back(next_);
    }
  }
  return next_ <= recorded;
}

void FlightReader::read_groups(FlightBatch& batch) {
  batch.recorded = recorder_.recorded();
  batch.lost = lost_;
  batch.counted_since = recorder_.counted_since();
  for (const auto& [number, group] : recorder_.groups()) {
    if (known_.emplace(number, group.failure.has_value()).second) {
      batch.groups.emplace(number, group);
    }
    batch.counters.push_back({number, *recorder_.find_counters(number)});
  }
}

}  // namespace q7x2
