// NameTable: numbers the names of algorithms and codecs, so that they fit into a record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace q7x2 {

class NameTable {
 public:
  /// Further names share the number of `kOther`.
  static constexpr size_t kMost = 512;
  static constexpr const char* kOther = "(other)";

  /// Number 0 is the empty name.
  NameTable() : names_{""} {}

  /// The number of a name; a new name gets the next number. If there is no memory for it, returns
  /// the number of `kOther`.
  uint16_t number_of(std::string_view name) noexcept;
  /// Empty for a number that was never assigned.
  std::string_view name_of(uint16_t number) const;

 private:
  std::vector<std::string> names_;
  size_t last_ = 0;  // number of the last query
};

}  // namespace q7x2
