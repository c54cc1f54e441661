// Fold: a sum of messages and numbers, which is stored as a message or as numbers.
#pragma once

#include <cstddef>

namespace q7x2 {

/// One rank's contribution: a message's body, or, if that is null, plain numbers.
struct FoldSource {
  const std::byte* body = nullptr;
  const float* values = nullptr;
};
inline constexpr int kMostFolded = 64;
/// A sum of contributions, in their order, divided by `divisor`.
struct Fold {
  FoldSource of[kMostFolded];
  int num = 0;
  float divisor = 1;
};
/// The destination of the sum: a message's body, or, if that is null, numbers.
struct FoldTarget {
  std::byte* body = nullptr;
  float* values = nullptr;
};

}  // namespace q7x2
