// Which hosts of a Fabric have a private link.
#pragma once

#include <algorithm>

#include "fabric/fabric.h"

namespace q7x2 {

/// Null: their traffic takes the network that all hosts share.
inline const Fabric::Link* find_link(const Fabric& fabric, int a, int b) {
  const auto found = std::ranges::find_if(fabric.links, [&](const Fabric::Link& link) {
    return std::minmax(link.a, link.b) == std::minmax(a, b);
  });
  return found == fabric.links.end() ? nullptr : &*found;
}

}  // namespace q7x2
