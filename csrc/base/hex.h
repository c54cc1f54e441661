// Bytes as hexadecimal digits.
#pragma once

#include <string>
#include <string_view>

namespace q7x2 {

std::string to_hex(std::string_view bytes);
/// Empty where `text` has an odd length or other characters than `to_hex` writes.
std::string from_hex(std::string_view text);

}  // namespace q7x2
