#include "ledger/operation_counters.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ledger/name_table.h"

namespace q7x2 {
namespace {

using Kind = FlightRecord::Kind;
using State = FlightRecord::State;

TEST(DurationHistogram, QuantilesAreRightWithinASixteenth) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> logarithm(std::log(1024.0), std::log(2e11));
  DurationHistogram histogram;
  std::vector<int64_t> values;
  for (int i = 0; i < 5000; ++i) {
    values.push_back(std::llround(std::exp(logarithm(random))));
    histogram.add(values.back());
  }
  std::ranges::sort(values);
  for (const double part : {0.0, 0.1, 0.5, 0.9, 0.99, 1.0}) {
    const auto exact = static_cast<double>(values[static_cast<size_t>(part * 4999)]);
    EXPECT_NEAR(static_cast<double>(histogram.quantile(part)), exact, exact / 16) << part;
  }
}

TEST(DurationHistogram, KeepsWhatIsOutsideOfItsBuckets) {
  DurationHistogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), 0);
  histogram.add(0);
  histogram.add(-5);
  histogram.add(int64_t{1} << 60);
  EXPECT_NEAR(static_cast<double>(histogram.quantile(0)), 1024, 100);
  EXPECT_GT(histogram.quantile(1), int64_t{200'000'000'000});
}

FlightRecord record_of(Kind kind, State state, int64_t took) {
  FlightRecord record;
  record.kind = kind;
  record.state = state;
  record.submitted = 1000;
  record.started = 1500;
  record.finished = record.started + took;
  record.input_bytes = 8;
  record.traffic.sent_network = 3;
  record.work.copy = 2;
  record.waited = 7;
  return record;
}

TEST(GroupCounters, AddUpByKind) {
  const auto counters = std::make_unique<GroupCounters>();
  FlightRecord reduce = record_of(Kind::kCollective, State::kDone, 4000);
  reduce.collective = Collective::kAllReduce;
  reduce.predicted = 1e-6F;
  counters->add(reduce);
  reduce.finished += 1000;
  reduce.predicted = 0;
  counters->add(reduce);
  reduce.is_internal = true;
  counters->add(reduce);
  counters->add(record_of(Kind::kSend, State::kDone, 1));
  counters->add(record_of(Kind::kReceive, State::kFailed, 1));
  size_t kinds = 0;
  for (size_t kind = 0; kind < GroupCounters::kKinds; ++kind) {
    const OperationCounters& each = counters->of(kind);
    const std::string name = GroupCounters::name_of(kind);
    kinds += each.count + each.failed > 0 ? 1 : 0;
    if (name == "all_reduce") {
      EXPECT_EQ(each.count, 2U);
      EXPECT_EQ(each.input_bytes, 16U);
      EXPECT_EQ(each.traffic.sent_network, 6U);
      EXPECT_EQ(each.work.copy, 4);
      EXPECT_EQ(each.queued, 1000);
      EXPECT_EQ(each.took, 9000);
      EXPECT_EQ(each.longest, 5000);
      EXPECT_EQ(each.waited, 14);
      EXPECT_NEAR(each.predicted, 1e-6, 1e-12);
      EXPECT_NEAR(each.took_predicted, 4e-6, 1e-12);
    } else if (name == "receive") {
      EXPECT_EQ(each.count, 0U);
      EXPECT_EQ(each.failed, 1U);
    } else {
      EXPECT_EQ(each.count, name == "send" || name == "preparation" ? 1U : 0U) << name;
    }
  }
  EXPECT_EQ(kinds, 4U);
}

TEST(NameTable, NumbersEachNameOnceAndNoMoreThanItMay) {
  NameTable names;
  EXPECT_EQ(names.number_of(""), 0);
  const uint16_t ring = names.number_of("ring");
  const uint16_t tree = names.number_of("tree");
  EXPECT_NE(ring, tree);
  EXPECT_EQ(names.number_of("ring"), ring);
  EXPECT_EQ(names.name_of(tree), "tree");
  EXPECT_EQ(names.name_of(999), "");
  for (size_t i = 0; i < 2 * NameTable::kMost; ++i) names.number_of(std::to_string(i));
  EXPECT_EQ(names.name_of(names.number_of("one too many")), NameTable::kOther);
  EXPECT_EQ(names.number_of("ring"), ring);
}

}  // namespace
}  // namespace q7x2
