#include "ledger/operation_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "ledger/call_signature.h"

namespace q7x2 {
namespace {

using Operation = FlightBatch::Operation;
using Kind = FlightRecord::Kind;

static_assert(std::endian::native == std::endian::little, "records are little-endian");

using Column = OperationTable::Column;
using Value = OperationTable::Value;

bool is_collective(const FlightRecord& record) {
  return record.kind == Kind::kCollective;
}

bool is_typed(const FlightRecord& record) {
  return record.dtype != DType::kBytes;
}

bool has_failed(const FlightRecord& record) {
  return record.state == FlightRecord::State::kFailed;
}

const char* name_of(const FlightRecord& record) {
  switch (record.kind) {
    case Kind::kSend:
      return "send";
    case Kind::kReceive:
      return "receive";
    case Kind::kCollective:
      return to_string(record.collective);
  }
  return "";
}

constexpr std::array kColumns = {
    Column{"id", 'q', [](const Operation& op) -> Value { return op.record.id; }},
    Column{"pg", 'i', [](const Operation& op) -> Value { return op.record.group; }},
    Column{"operation", 'h', [](const Operation& op) -> Value { return name_of(op.record); }},
    Column{"internal", 'b', [](const Operation& op) -> Value { return op.record.is_internal; }},
    Column{"error", 'h',
           [](const Operation& op) -> Value {
             return has_failed(op.record) ? Value(to_string(op.record.error)) : Value();
           }},
    Column{"sequence", 'q', [](const Operation& op) -> Value { return op.record.sequence; }},
    Column{"peer", 'i', [](const Operation& op) -> Value { return op.record.peer; }},
    Column{"tag", 'q',
           [](const Operation& op) -> Value {
             return !is_collective(op.record) ? Value(op.record.tag) : Value();
           }},
    Column{"dtype", 'h',
           [](const Operation& op) -> Value {
             return is_typed(op.record) ? Value(to_string(op.record.dtype)) : Value();
           }},
    Column{"reduce", 'h',
           [](const Operation& op) -> Value {
             return is_reduced(op.record) ? Value(to_string(op.record.reduce)) : Value();
           }},
    Column{"plan", 'h',
           [](const Operation& op) -> Value {
             return op.record.plan != 0 ? Value(op.plan) : Value();
           }},
    Column{"codec", 'h',
           [](const Operation& op) -> Value {
             return op.record.codec != 0 ? Value(op.codec) : Value();
           }},
    Column{"slices", 'i', [](const Operation& op) -> Value { return op.record.slices; }},
    Column{"input_bytes", 'q', [](const Operation& op) -> Value { return op.record.input_bytes; }},
    Column{"output_bytes", 'q',
           [](const Operation& op) -> Value { return op.record.output_bytes; }},
    Column{"sent_network", 'q',
           [](const Operation& op) -> Value { return op.record.traffic.sent_network; }},
    Column{"received_network", 'q',
           [](const Operation& op) -> Value { return op.record.traffic.received_network; }},
    Column{"sent_memory", 'q',
           [](const Operation& op) -> Value { return op.record.traffic.sent_memory; }},
    Column{"received_memory", 'q',
           [](const Operation& op) -> Value { return op.record.traffic.received_memory; }},
    Column{"queued_ns", 'q', [](const Operation& op) -> Value { return op.record.submitted; }},
    Column{"started_ns", 'q',
           [](const Operation& op) -> Value {
             return op.record.started != 0 ? Value(op.record.started) : Value();
           }},
    Column{"finished_ns", 'q', [](const Operation& op) -> Value { return op.record.finished; }},
    Column{"select_ns", 'q', [](const Operation& op) -> Value { return op.record.work.select; }},
    Column{"encode_ns", 'q', [](const Operation& op) -> Value { return op.record.work.encode; }},
    Column{"decode_ns", 'q', [](const Operation& op) -> Value { return op.record.work.decode; }},
    Column{"reduce_ns", 'q', [](const Operation& op) -> Value { return op.record.work.reduce; }},
    Column{"copy_ns", 'q', [](const Operation& op) -> Value { return op.record.work.copy; }},
    Column{"waited_ns", 'q', [](const Operation& op) -> Value { return op.record.waited; }},
    Column{"waited_for", 'i', [](const Operation& op) -> Value { return op.record.waited_for; }},
    Column{"waited_percent", 'b',
           [](const Operation& op) -> Value { return op.record.waited_share; }},
    Column{"predicted_ns", 'q',
           [](const Operation& op) -> Value {
             return op.record.predicted > 0 ? Value(std::llround(double{op.record.predicted} * 1e9))
                                            : Value();
           }},
};

size_t bytes_of(char format) {
  switch (format) {
    case 'b':
      return 1;
    case 'h':
      return 2;
    case 'i':
      return 4;
    default:
      return 8;
  }
}

}  // namespace

std::span<const OperationTable::Column> OperationTable::columns() {
  return kColumns;
}

OperationTable::OperationTable(std::span<const Operation> operations) : count_(operations.size()) {
  for (const Operation& each : operations) {
    last_ = std::max(last_, each.record.id);
    for (const Column& column : kColumns) {
      const Value value = column.value(each);
      const int64_t number = value.text == nullptr ? value.number : number_of(value.text);
      records_.append(reinterpret_cast<const char*>(&number), bytes_of(column.format));
    }
  }
}

int64_t OperationTable::number_of(std::string_view name) {
  const auto known = numbers_.find(name);
  if (known != numbers_.end()) return known->second;
  const auto number = static_cast<int64_t>(names_.size());
  names_.emplace_back(name);
  numbers_.emplace(name, number);
  return number;
}

}  // namespace q7x2
