// ConnectionFacts: what the kernel knows about the TCP connections of a path.
#pragma once

#include <vector>

namespace q7x2 {

struct ConnectionFacts {
  int connections = 0;
  double round_trip = 0;  ///< the shortest, in seconds; 0: not known
  double sent_again = 0;  ///< share of the packets that were sent more than once

  /// The facts about connected sockets; others are left out.
  static ConnectionFacts of(const std::vector<int>& sockets);
};

}  // namespace q7x2
