// DevicePath: how uncompressed tensors on a device travel from rank to rank.
//
// Staged tensors pass through pinned host memory. Direct ones stay on the device, and UCX gets
// their addresses: between ranks of a host it copies from device to device (CUDA IPC), and between
// hosts a NIC reads and writes the device's memory (GPUDirect RDMA), if it can.
#pragma once

#include <cstdint>
#include <string_view>

namespace q7x2 {

class UcpContext;

enum class DevicePath : uint8_t {
  kAuto,  ///< direct if all ranks share a host, and UCX can copy between their devices
  kStaged,
  kDirect,  ///< in whatever way UCX moves the memory of a device
};
/// "auto", "staged", "direct".
std::string_view to_string(DevicePath path);
/// Throws Error(kInvalidArgument) for any other text; its message begins with `what`.
DevicePath parse_device_path(std::string_view text, std::string_view what);

/// How UCX handles memory of CUDA devices in one process.
enum class DeviceMemory : uint8_t {
  kNone,    ///< it does not know this memory
  kCopied,  ///< it copies through the host if it has no better way
  kMapped,  ///< it also copies between the devices of processes of one host
};
DeviceMemory device_memory_of(const UcpContext& context);

}  // namespace q7x2
