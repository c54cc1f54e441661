#include "ledger/name_table.h"

#include <algorithm>
#include <new>

namespace q7x2 {
namespace {

constexpr uint16_t kOtherNumber = UINT16_MAX;

}  // namespace

uint16_t NameTable::number_of(std::string_view name) noexcept {
  if (names_[last_] == name) return static_cast<uint16_t>(last_);
  const auto found = std::ranges::find(names_, name);
  const auto number = static_cast<size_t>(found - names_.begin());
  if (found == names_.end()) {
    if (number >= kMost) return kOtherNumber;
    try {
      names_.emplace_back(name);
    } catch (const std::bad_alloc&) {
      return kOtherNumber;
    }
  }
  last_ = number;
  return static_cast<uint16_t>(number);
}

std::string_view NameTable::name_of(uint16_t number) const {
  if (number == kOtherNumber) return kOther;
  return number < names_.size() ? std::string_view(names_[number]) : std::string_view();
}

}  // namespace q7x2
