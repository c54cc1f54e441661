// Whether the calls of a group on tensors of devices are direct.
#include "transport/ucx/device_path.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "transport/group/group_device_path.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {
namespace {

PeerInfo peer_info(DeviceMemory memory, const std::string& host = "a",
                   DevicePath path = DevicePath::kAuto) {
  PeerInfo peer_info;
  peer_info.host_key = host;
  peer_info.transports = "sysv, tcp";
  peer_info.device_path = path;
  peer_info.device_memory = memory;
  return peer_info;
}

TEST(DevicePath, IsDirectOnOneHostIfDevicesAreMapped) {
  const PeerInfo mapped = peer_info(DeviceMemory::kMapped);
  EXPECT_TRUE(device_path_of({mapped, mapped}).is_direct);
  EXPECT_FALSE(device_path_of({mapped, peer_info(DeviceMemory::kMapped, "b")}).is_direct);
  EXPECT_FALSE(device_path_of({mapped, peer_info(DeviceMemory::kCopied)}).is_direct);
  const DevicePathOfGroup without = device_path_of({mapped, peer_info(DeviceMemory::kNone)});
  EXPECT_FALSE(without.is_direct);
  EXPECT_EQ(without.obstacle, "");
}

TEST(DevicePath, IsWhatRank0WasTold) {
  const PeerInfo mapped = peer_info(DeviceMemory::kMapped);
  const PeerInfo staged = peer_info(DeviceMemory::kMapped, "a", DevicePath::kStaged);
  EXPECT_FALSE(device_path_of({staged, mapped}).is_direct);
  EXPECT_TRUE(device_path_of({mapped, staged}).is_direct);
  const PeerInfo direct = peer_info(DeviceMemory::kCopied, "a", DevicePath::kDirect);
  EXPECT_TRUE(device_path_of({direct, peer_info(DeviceMemory::kCopied, "b")}).is_direct);
}

TEST(DevicePath, SaysWhichRankStandsInTheWay) {
  const PeerInfo direct = peer_info(DeviceMemory::kCopied, "a", DevicePath::kDirect);
  const DevicePathOfGroup path = device_path_of({direct, peer_info(DeviceMemory::kNone)});
  EXPECT_FALSE(path.is_direct);
  EXPECT_EQ(path.obstacle,
            "UCX cannot send memory of a device from rank 1: expected its transport cuda_copy, got "
            "'sysv, tcp'");
}

TEST(DevicePath, HasThreeNames) {
  for (const DevicePath path : {DevicePath::kAuto, DevicePath::kStaged, DevicePath::kDirect}) {
    EXPECT_EQ(parse_device_path(to_string(path), "it"), path);
  }
  try {
    parse_device_path("ipc", "Q7X2_DEVICE_PATH");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "Q7X2_DEVICE_PATH: expected auto, staged or direct, got 'ipc'");
  }
}

}  // namespace
}  // namespace q7x2
