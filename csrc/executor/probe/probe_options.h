#pragma once

#include <chrono>

namespace q7x2 {

struct ProbeOptions {
  /// Also every two hosts with nobody else talking, whatever their number: for reports.
  bool all_pairs = false;
  /// The timeout of each message.
  std::chrono::milliseconds timeout{30'000};
};

}  // namespace q7x2
