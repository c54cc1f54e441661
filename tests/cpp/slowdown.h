// Factor for the time that a test may take, because sanitizers make it slower.
#pragma once

namespace q7x2::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlowdown = 10;
#else
inline constexpr int kSlowdown = 1;
#endif

}  // namespace q7x2::test
