// Announcement: what each rank says of itself before a Fabric is chosen: its build of q7x2, and
// the hardware threads it is bound to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fabric/fabric.h"

namespace q7x2 {

struct Announcement {
  std::string build;
  Fabric::Binding binding;
  std::string known = {};    ///< a digest of the Fabric that this rank knows; empty: none
  bool has_servers = false;  ///< rank 0: servers wait for the group

  std::string encode() const;
  /// Throws Error(kMismatch) where the bytes are no announcement of build `build`. `who` begins the
  /// message: "rank 3 (pid 41 on host a)".
  static Announcement decode(std::string_view bytes, const std::string& build,
                             const std::string& who);
};

/// Where this process may run now; nothing known where the kernel does not say.
Fabric::Binding own_binding();

/// By host: the number of hardware threads that its ranks may use together; 0 where one of them did
/// not say.
std::vector<int> cores_of_hosts(const std::vector<int>& host_of,
                                const std::vector<Fabric::Binding>& bindings);

}  // namespace q7x2
