// Converts bytes to hexadecimal digits and back.
#pragma once

#include <string>
#include <string_view>

namespace q7x2 {

std::string to_hex(std::string_view bytes);
/// Empty if `text` has an odd length or characters that `to_hex` does not write.
std::string from_hex(std::string_view text);

}  // namespace q7x2
