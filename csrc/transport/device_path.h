// DevicePath: how uncompressed tensors on a device get from rank to rank.
//
// Staged ones pass through pinned host memory. Direct ones stay on the device, and UCX gets their
// addresses: between ranks of a host it copies from device to device (CUDA IPC), and between hosts
// a NIC reads and writes the device's memory (GPUDirect RDMA), if it can.
//
// The two ends of a message must take the same way. So the ranks of a group decide alike, by what
// rank 0 was told and what all of them have published of themselves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace q7x2 {

struct Card;
class UcpContext;

enum class DevicePath : uint8_t {
  kAuto,  ///< direct if all ranks share a host, and UCX can copy between their devices
  kStaged,
  kDirect,  ///< whatever UCX does to move the memory of a device
};
/// "auto", "staged", "direct".
std::string_view to_string(DevicePath path);
/// Throws Error(kInvalidArgument), which begins with `what`, for any other text.
DevicePath parse_device_path(std::string_view text, std::string_view what);

/// What UCX does with memory of CUDA devices in one process.
enum class DeviceMemory : uint8_t {
  kNone,    ///< it does not know it
  kCopied,  ///< it copies it to the host and back, if it has no better way
  kMapped,  ///< the processes of a host also copy between their devices
};
DeviceMemory device_memory_of(const UcpContext& context);

/// Of a group, equal on all ranks.
struct DevicePathOfGroup {
  bool is_direct = false;
  std::string obstacle;  ///< why not, though rank 0 was told so; empty: it was not, or nothing
};
DevicePathOfGroup device_path_of(const std::vector<Card>& cards);

}  // namespace q7x2
