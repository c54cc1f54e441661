// How uncompressed tensors on a device travel in a group: directly, or through memory of the host.
//
// Both ends of a message must use the same way. So all ranks of a group make the same decision,
// from the option that rank 0 was given and from what all ranks have published about themselves.
#pragma once

#include <string>
#include <vector>

namespace q7x2 {

struct PeerInfo;

/// The decision, equal on all ranks of a group.
struct DevicePathOfGroup {
  bool is_direct = false;
  std::string obstacle;  ///< why not, if rank 0 was told to; otherwise empty
};
DevicePathOfGroup device_path_of(const std::vector<PeerInfo>& peer_infos);

}  // namespace q7x2
