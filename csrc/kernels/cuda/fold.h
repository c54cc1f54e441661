// Fold: a sum of messages and numbers, which becomes a message or numbers.
#pragma once

#include <cstddef>

namespace q7x2 {

/// One rank's contribution: a message's body, or, if that is null, numbers as they are.
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
/// Where the sum goes: to a message's body, or, if that is null, to numbers.
struct FoldTarget {
  std::byte* body = nullptr;
  float* values = nullptr;
};

}  // namespace q7x2
