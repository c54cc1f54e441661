// Publication: what rank 0 proposes for calls of one kind, as bytes that the other ranks check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/choose/planner.h"

namespace q7x2 {

struct Publication {
  /// The length as bytes.
  static constexpr size_t kBytes = 2048;
  static constexpr size_t kMostProposals = 6;

  std::vector<Proposal> proposals;  ///< the chosen one first
  std::string environment;          ///< what the publisher runs on, for messages
  uint64_t epoch = 0;               ///< of the Fabric that they were made for

  /// Writes kBytes bytes. Throws Error(kInternal) where a name is too long.
  void write(std::span<std::byte> bytes) const;
  /// Throws Error(kInternal) where the bytes are no publication.
  static Publication read(std::span<const std::byte> bytes);
};

}  // namespace q7x2
