// NameTable: names of algorithms and codecs as small numbers, so that a record has room for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace q7x2 {

class NameTable {
 public:
  /// Names beyond that many share the number of `kOther`.
  static constexpr size_t kMost = 512;
  static constexpr const char* kOther = "(other)";

  /// Number 0 is the empty name.
  NameTable() : names_{""} {}

  /// The number of a name; a new one gets the next. If there is no memory for it, that of `kOther`.
  uint16_t number_of(std::string_view name) noexcept;
  /// Empty for a number that was never given.
  std::string_view name_of(uint16_t number) const;

 private:
  std::vector<std::string> names_;
  size_t last_ = 0;  // that was asked for
};

}  // namespace q7x2
