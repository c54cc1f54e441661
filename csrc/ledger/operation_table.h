// OperationTable: operations as records of one size, for the ledger's file.
//
// Python would need several microseconds to make objects of an operation's values, and to write
// them. So a batch of operations is written as one bytes value, and the reader of the file makes
// the rows. Integers are little-endian, and -1 if there is no value. Texts are numbers of names
// that come with the batch.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ledger/flight_reader.h"

namespace q7x2 {

class OperationTable {
 public:
  /// A number, a text, or nothing.
  struct Value {
    int64_t number = -1;
    const char* text = nullptr;

    Value() = default;
    Value(std::integral auto value) : number(static_cast<int64_t>(value)) {}
    Value(const char* value) : text(value) {}
    Value(const std::string& value) : text(value.c_str()) {}
  };
  struct Column {
    const char* name;
    char format;  ///< as in Python's `struct`; "h" is the number of a name
    Value (*value)(const FlightBatch::Operation& operation);

    bool is_text() const { return format == 'h'; }
  };
  /// In the order of a record's values.
  static std::span<const Column> columns();

  explicit OperationTable(std::span<const FlightBatch::Operation> operations);

  size_t count() const { return count_; }
  /// The largest id; 0 if there is none.
  uint64_t last() const { return last_; }
  const std::string& records() const { return records_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  int64_t number_of(std::string_view name);

  size_t count_ = 0;
  uint64_t last_ = 0;
  std::string records_;
  std::vector<std::string> names_;
  std::map<std::string, int64_t, std::less<>> numbers_;
};

}  // namespace q7x2
