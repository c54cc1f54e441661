#pragma once

#include <cstdlib>
#include <string>

namespace q7x2 {

/// The value of an environment variable; empty if it is not set.
inline std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace q7x2
