// Which way uncompressed tensors on a device take in a group.
//
// The two ends of a message must take the same way. So the ranks of a group decide alike, by what
// rank 0 was told and what all of them have published of themselves.
#pragma once

#include <string>
#include <vector>

namespace q7x2 {

struct PeerInfo;

/// Of a group, equal on all ranks.
struct DevicePathOfGroup {
  bool is_direct = false;
  std::string obstacle;  ///< why not, though rank 0 was told so; empty: it was not, or nothing
};
DevicePathOfGroup device_path_of(const std::vector<PeerInfo>& peer_infos);

}  // namespace q7x2
