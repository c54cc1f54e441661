// Two processes with a UCX worker each, of which one sends device memory to the other.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "copies.h"

namespace q7x2::test {

struct Transfer {
  /// UCX's settings, without UCX_: {"TLS", "cuda_copy,tcp"}.
  std::map<std::string, std::string> settings;
  size_t bytes = 0;
};

struct Outcome {
  std::string problem;  ///< empty if all bytes arrived
  FakeCudaCopies sender{};
  FakeCudaCopies receiver{};
};

/// The copies are those of the transfer, without the ones that fill and read the memory.
Outcome move_device_memory(const Transfer& transfer);

}  // namespace q7x2::test
