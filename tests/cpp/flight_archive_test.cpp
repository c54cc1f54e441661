// What runtimes leave when they end: bounded, once per runtime, and the records of the last one.
#include "ledger/flight_archive.h"

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

FlightBatch batch_of(uint64_t process, uint32_t groups, uint64_t sequence) {
  FlightBatch batch;
  batch.process = process;
  batch.steady_now = 50;
  batch.wall_now = 1050;
  for (uint32_t i = 1; i <= groups; ++i) {
    batch.groups[i].name = std::to_string(process) + "." + std::to_string(i);
    FlightBatch::Counted counted{.group = i, .counters = {}};
    FlightRecord record;
    record.state = FlightRecord::State::kDone;
    for (uint64_t n = 0; n < sequence; ++n) counted.counters.add(record);
    batch.counters.push_back(counted);
  }
  return batch;
}

FlightSnapshot records_of(uint64_t process) {
  FlightSnapshot snapshot;
  snapshot.process = process;
  return snapshot;
}

uint64_t count_of(const FlightArchive::Counted& group) {
  uint64_t count = 0;
  for (size_t kind = 0; kind < GroupCounters::kKinds; ++kind) {
    count += group.counters.of(kind).count;
  }
  return count;
}

TEST(FlightArchive, IsEmptyAtFirst) {
  const FlightArchive archive;
  EXPECT_TRUE(archive.counters().groups.empty());
  EXPECT_EQ(archive.counters().since, 0);
  EXPECT_FALSE(archive.records());
}

TEST(FlightArchive, ARuntimeMayCorrectWhatItHasLeft) {
  FlightArchive archive;
  archive.keep(batch_of(1, 2, 3), records_of(1));
  archive.keep(batch_of(2, 1, 1), records_of(2));
  archive.keep(batch_of(1, 2, 4), records_of(1));
  const auto groups = archive.counters().groups;
  ASSERT_EQ(groups.size(), 3);
  EXPECT_EQ(groups[0].group.name, "2.1");
  EXPECT_EQ(groups[2].group.name, "1.2");
  EXPECT_EQ(count_of(groups[0]), 1);
  EXPECT_EQ(count_of(groups[2]), 4);
  for (const auto& each : groups) EXPECT_FALSE(each.group.is_open);
  EXPECT_EQ(archive.records()->process, 1);
}

TEST(FlightArchive, KeepsTheLastGroups) {
  FlightArchive archive;
  constexpr uint64_t kRuntimes = 3 * FlightArchive::kMostGroups;
  for (uint64_t process = 1; process <= kRuntimes; ++process) {
    archive.keep(batch_of(process, 1, 1), records_of(process));
  }
  const auto groups = archive.counters().groups;
  ASSERT_EQ(groups.size(), FlightArchive::kMostGroups);
  EXPECT_EQ(groups.front().process, kRuntimes - FlightArchive::kMostGroups + 1);
  EXPECT_EQ(groups.back().process, kRuntimes);
}

TEST(FlightArchive, KnowsWhenCountsBegan) {
  FlightArchive archive;
  FlightBatch batch = batch_of(1, 1, 1);
  batch.counted_since = 20;
  archive.keep(batch, records_of(1));
  EXPECT_EQ(archive.counters().since, 1020);
  archive.forget_counters(2000);
  EXPECT_EQ(archive.counters().since, 2000);
  EXPECT_TRUE(archive.counters().groups.empty());
  EXPECT_TRUE(archive.records());
}

}  // namespace
}  // namespace q7x2
