// Publication: rank 0's proposals for calls of one kind, as bytes that the other ranks check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/choose/choice.h"

namespace q7x2 {

struct Publication {
  /// The length in bytes.
  static constexpr size_t kBytes = 2048;
  static constexpr size_t kMostProposals = 6;

  std::vector<Proposal> proposals;  ///< the chosen one is first
  std::string environment;          ///< the build and processor of rank 0, for messages
  uint64_t epoch = 0;               ///< the epoch of the Fabric that they were made for

  /// Writes kBytes bytes. Throws Error(kInternal) if a name is too long.
  void write(std::span<std::byte> bytes) const;
  /// Throws Error(kInternal) if the bytes are not a publication.
  static Publication read(std::span<const std::byte> bytes);
};

}  // namespace q7x2
