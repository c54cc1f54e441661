// Q7X2_SILENCE in tests.
#pragma once

#include <cstdlib>

namespace q7x2::test {

/// Sets Q7X2_SILENCE for the duration of a test.
class Silence {
 public:
  explicit Silence(const char* seconds) { ::setenv("Q7X2_SILENCE", seconds, 1); }
  ~Silence() { ::unsetenv("Q7X2_SILENCE"); }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;
};

}  // namespace q7x2::test
