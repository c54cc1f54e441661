#include "transport/group/group_device_path.h"

#include <algorithm>

#include "transport/peer/peer_info.h"

namespace q7x2 {

DevicePathOfGroup device_path_of(const std::vector<PeerInfo>& peer_infos) {
  const auto all = [&](const auto& holds) { return std::ranges::all_of(peer_infos, holds); };
  switch (peer_infos.front().device_path) {
    case DevicePath::kStaged:
      return {};
    case DevicePath::kAuto:
      return {.is_direct = all([&](const PeerInfo& peer_info) {
                return peer_info.host_key == peer_infos.front().host_key &&
                       peer_info.device_memory == DeviceMemory::kMapped;
              }),
              .obstacle = {}};
    case DevicePath::kDirect:
      break;
  }
  const auto behind_nat = std::ranges::find_if(
      peer_infos, [&](const PeerInfo& each) { return is_nat_between(each, peer_infos.front()); });
  if (behind_nat != peer_infos.end()) {
    return {.is_direct = false,
            .obstacle = "there is NAT (Q7X2_ADVERTISE) between ranks 0 and " +
                        std::to_string(behind_nat - peer_infos.begin()) +
                        ", and UCX cannot connect through it"};
  }
  const auto without = std::ranges::find(peer_infos, DeviceMemory::kNone, &PeerInfo::device_memory);
  if (without == peer_infos.end()) return {.is_direct = true, .obstacle = {}};
  return {.is_direct = false,
          .obstacle = "UCX cannot send memory of a device from rank " +
                      std::to_string(without - peer_infos.begin()) +
                      ": expected its transport cuda_copy, got '" + without->transports + "'"};
}

}  // namespace q7x2
