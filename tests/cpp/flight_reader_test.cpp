#include "ledger/flight_reader.h"

#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "ledger/ledger_feed.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;
using State = FlightRecord::State;

void end(FlightRecorder& recorder, uint64_t id) {
  FlightRecord& record = *recorder.find(id);
  record.state = State::kDone;
  record.finished = 1;
}

std::vector<uint64_t> read(FlightReader& reader, FlightBatch& batch) {
  batch = {};
  reader.read_pending(batch);
  while (reader.read_new(batch, 2)) {
  }
  reader.read_groups(batch);
  std::vector<uint64_t> ids;
  for (const FlightBatch::Operation& each : batch.operations) ids.push_back(each.record.id);
  return ids;
}

TEST(FlightReader, PassesEachOperationOnOnceWhenItIsOver) {
  FlightRecorder recorder(16);
  FlightReader reader(recorder);
  FlightBatch batch;
  for (int i = 0; i < 5; ++i) recorder.add();
  for (const uint64_t id : {1, 2, 4, 5}) end(recorder, id);
  EXPECT_EQ(read(reader, batch), (std::vector<uint64_t>{1, 2, 4, 5}));
  EXPECT_TRUE(read(reader, batch).empty());
  end(recorder, recorder.add().id);
  end(recorder, 3);
  EXPECT_EQ(read(reader, batch), (std::vector<uint64_t>{3, 6}));
  EXPECT_EQ(batch.lost, 0U);
  EXPECT_EQ(batch.recorded, 6U);
}

// Of 3, which was in progress, and of 9 to 20 only the last four are there.
TEST(FlightReader, CountsWhatHasMadeRoomForOthers) {
  FlightRecorder recorder(4);
  FlightReader reader(recorder);
  FlightBatch batch;
  for (uint64_t id = 1; id <= 4; ++id) recorder.add();
  for (const uint64_t id : {1, 2, 4}) end(recorder, id);
  EXPECT_EQ(read(reader, batch), (std::vector<uint64_t>{1, 2, 4}));
  for (uint64_t id = 5; id <= 20; ++id) end(recorder, recorder.add().id);
  EXPECT_EQ(read(reader, batch), (std::vector<uint64_t>{17, 18, 19, 20}));
  EXPECT_EQ(batch.lost, 1U + 12U);
}

TEST(FlightReader, TellsOfAGroupAndOfItsFailure) {
  FlightRecorder recorder(4);
  FlightReader reader(recorder);
  FlightBatch batch;
  FlightGroup group;
  group.name = "g";
  const uint32_t number = recorder.open(group);
  read(reader, batch);
  EXPECT_EQ(batch.groups.at(number).name, "g");
  read(reader, batch);
  EXPECT_TRUE(batch.groups.empty());
  ASSERT_EQ(batch.counters.size(), 1U);
  recorder.find_group(number)->failure = {.text = "why"};
  read(reader, batch);
  EXPECT_EQ(batch.groups.at(number).failure->text, "why");
}

TEST(LedgerFeed, HasTheRestWhenTheRuntimeIsGone) {
  run_ranks(2, [](Rank& rank) {
    const auto feed = std::make_shared<LedgerFeed>();
    {
      const auto group = rank.group();
      rank.runtime().record(*group, {});
      {
        Locked locked(rank.runtime().lock());
        rank.runtime().flights().follow(locked, feed);
      }
      Comm comm(group);
      comm.succeed(*comm.all_reduce(buffer<int32_t>(100)));
      const FlightBatch first = rank.runtime().flights().read(rank.runtime().lock());
      EXPECT_EQ(first.operations.size(), 2U);  // the announcement of the algorithm comes first
      comm.succeed(*comm.all_reduce(buffer<int32_t>(100)));
      rank.barrier();
    }
    rank.drop_runtime();
    const std::vector<FlightBatch> rest = feed->take();
    ASSERT_EQ(rest.size(), 1U);
    ASSERT_EQ(rest[0].operations.size(), 1U);
    const FlightBatch::Operation& last = rest[0].operations[0];
    EXPECT_EQ(last.record.sequence, 2U);
    EXPECT_FALSE(last.plan.empty());
    ASSERT_EQ(rest[0].counters.size(), 1U);
    const OperationCounters& counted =
        rest[0].counters[0].counters.of(static_cast<size_t>(Collective::kAllReduce));
    EXPECT_EQ(counted.count, 2U);
  });
}

TEST(LedgerFeed, HasEachOperationOnceIfItIsAttachedWhileTheRuntimeEnds) {
  run_ranks(1, [](Rank& rank) {
    const auto feed = std::make_shared<LedgerFeed>();
    const auto group = rank.group();
    rank.runtime().record(*group, {});
    FlightLog& flights = rank.runtime().flights();
    {
      Locked locked(rank.runtime().lock());
      flights.follow(locked, feed);
    }
    Comm comm(group);
    comm.succeed(*comm.all_reduce(buffer<int32_t>(100)));
    {
      Locked locked(rank.runtime().lock());
      flights.end_feed(locked);
      flights.follow(locked, feed);
    }
    EXPECT_TRUE(flights.read(rank.runtime().lock()).operations.empty());
    const std::vector<FlightBatch> rest = feed->take();
    ASSERT_EQ(rest.size(), 1U);
    EXPECT_FALSE(rest[0].operations.empty());
  });
}

TEST(FlightRecorder, BytesAndWaitsOfACollectiveFitTogether) {
  run_ranks(2, [](Rank& rank) {
    const auto group = rank.group();
    rank.runtime().record(*group, {});
    Comm comm(group);
    constexpr size_t kElements = size_t{1} << 18;
    comm.succeed(*comm.all_reduce(buffer<int32_t>(kElements)));
    const FlightSnapshot snapshot = rank.runtime().flight_snapshot("of a test");
    const FlightRecord& call = snapshot.records.back();
    EXPECT_GE(call.waited, 0);
    EXPECT_LE(call.waited, call.duration());
    EXPECT_LE(call.waited_share, 100);
    EXPECT_TRUE(call.waited_for == -1 || call.waited_for == 1 - rank.rank);
    EXPECT_GT(call.work.reduce, 0);
    EXPECT_GT(call.work.copy, 0);
    EXPECT_EQ(call.work.encode, 0);
    // Each rank sends the half that it does not own, and the sum of the other half.
    const uint64_t expected = kElements * sizeof(int32_t);
    EXPECT_EQ(call.traffic.sent_memory + call.traffic.sent_network, expected);
    EXPECT_EQ(call.traffic.received_memory + call.traffic.received_network, expected);
    EXPECT_GT(call.predicted, 0);
  });
}

}  // namespace
}  // namespace q7x2
