#include "transport/peer/reach.h"

#include <algorithm>
#include <array>

namespace q7x2 {

bool share_memory(std::string_view transports, std::string_view others) {
  constexpr std::array<std::string_view, 2> kThroughMemory{"posix", "sysv"};
  return std::ranges::any_of(kThroughMemory, [&](std::string_view name) {
    return transports.find(name) != std::string_view::npos &&
           others.find(name) != std::string_view::npos;
  });
}

bool talk_through_memory(const PeerInfo& one, const PeerInfo& other) {
  return one.host_key == other.host_key && share_memory(one.transports, other.transports);
}

}  // namespace q7x2
