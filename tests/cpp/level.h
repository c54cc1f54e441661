// How much a test tries: some cases at the quick level, all of them at night (docs/testing.md).
#pragma once

#include <cstdlib>

namespace q7x2::test {

/// Whether this is the nightly run.
inline bool is_nightly() {
  return std::getenv("Q7X2_TEST_NIGHTLY") != nullptr;
}

/// The value for the current level.
template <class T>
T at_level(T quick, T nightly) {
  return is_nightly() ? nightly : quick;
}

}  // namespace q7x2::test
