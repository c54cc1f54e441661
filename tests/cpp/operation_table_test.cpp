#include "ledger/operation_table.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

size_t bytes_of(char format) {
  static const std::map<char, size_t> sizes = {{'b', 1}, {'h', 2}, {'i', 4}, {'q', 8}};
  return sizes.at(format);
}

/// The values of record `index`, by column; -1: none. Texts are numbers of names.
std::map<std::string, int64_t> values(const OperationTable& table, size_t index) {
  size_t record_bytes = 0;
  for (const OperationTable::Column& each : OperationTable::columns()) {
    record_bytes += bytes_of(each.format);
  }
  EXPECT_EQ(table.records().size(), table.count() * record_bytes);
  std::map<std::string, int64_t> result;
  const char* at = table.records().data() + index * record_bytes;
  for (const OperationTable::Column& each : OperationTable::columns()) {
    const size_t bytes = bytes_of(each.format);
    int64_t value = 0;
    std::memcpy(&value, at, bytes);
    const auto unused = static_cast<int>(64 - 8 * bytes);
    result[each.name] = static_cast<int64_t>(static_cast<uint64_t>(value) << unused) >> unused;
    at += bytes;
  }
  return result;
}

FlightBatch::Operation collective() {
  FlightBatch::Operation each;
  each.record.id = 7;
  each.record.group = 3;
  each.record.collective = Collective::kAllReduce;
  each.record.state = FlightRecord::State::kDone;
  each.record.dtype = DType::kFloat32;
  each.record.plan = 1;
  each.record.input_bytes = uint64_t{1} << 40;
  each.record.submitted = 100;
  each.record.started = 110;
  each.record.finished = 190;
  each.record.traffic.sent_memory = 12;
  each.record.work.reduce = 30;
  each.record.waited_share = 100;
  each.record.predicted = 1e-6F;
  each.plan = "ring";
  return each;
}

TEST(OperationTable, HasTheValuesOfEachOperation) {
  FlightBatch::Operation message;
  message.record.id = 9;
  message.record.kind = FlightRecord::Kind::kSend;
  message.record.state = FlightRecord::State::kFailed;
  message.record.error = ErrorCode::kTimeout;
  message.record.tag = 0xffffffff;
  message.record.peer = 5;
  const std::vector<FlightBatch::Operation> operations = {message, collective()};
  const OperationTable table(operations);
  EXPECT_EQ(table.count(), 2U);
  EXPECT_EQ(table.last(), 9U);
  const auto name = [&](int64_t number) { return table.names().at(static_cast<size_t>(number)); };

  std::map<std::string, int64_t> failed = values(table, 0);
  EXPECT_EQ(name(failed["operation"]), "send");
  EXPECT_EQ(name(failed["error"]), to_string(ErrorCode::kTimeout));
  EXPECT_EQ(failed["tag"], 0xffffffff);
  EXPECT_EQ(failed["peer"], 5);
  for (const char* const absent :
       {"dtype", "reduce", "plan", "codec", "started_ns", "waited_for", "predicted_ns"}) {
    EXPECT_EQ(failed[absent], -1) << absent;
  }

  std::map<std::string, int64_t> done = values(table, 1);
  EXPECT_EQ(done["id"], 7);
  EXPECT_EQ(done["pg"], 3);
  EXPECT_EQ(name(done["operation"]), to_string(Collective::kAllReduce));
  EXPECT_EQ(name(done["dtype"]), to_string(DType::kFloat32));
  EXPECT_EQ(name(done["reduce"]), to_string(ReduceKind::kSum));
  EXPECT_EQ(name(done["plan"]), "ring");
  EXPECT_EQ(done["input_bytes"], int64_t{1} << 40);
  EXPECT_EQ(done["queued_ns"], 100);
  EXPECT_EQ(done["started_ns"], 110);
  EXPECT_EQ(done["finished_ns"], 190);
  EXPECT_EQ(done["sent_memory"], 12);
  EXPECT_EQ(done["reduce_ns"], 30);
  EXPECT_EQ(done["waited_percent"], 100);
  EXPECT_EQ(done["predicted_ns"], 1000);
  for (const char* const absent : {"error", "peer", "tag", "codec", "waited_for"}) {
    EXPECT_EQ(done[absent], -1) << absent;
  }
}

TEST(OperationTable, OfManyOperationsHasEachNameOnce) {
  const std::vector<FlightBatch::Operation> operations(2000, collective());
  const OperationTable table(operations);
  EXPECT_EQ(table.names().size(), 4U);
  EXPECT_LE(table.records().size() / table.count(), 200U);
}

TEST(OperationTable, OfNoOperationsIsEmpty) {
  const OperationTable table({});
  EXPECT_EQ(table.count(), 0U);
  EXPECT_EQ(table.last(), 0U);
  EXPECT_TRUE(table.records().empty());
  EXPECT_TRUE(table.names().empty());
}

}  // namespace
}  // namespace q7x2
