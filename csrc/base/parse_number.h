// Parses numbers in texts: in a variable, an option, a file, a message.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace q7x2 {

/// The number in `text`, which must be decimal and without blanks. Nothing if `text` is not a
/// number, or does not fit the type.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

}  // namespace q7x2
