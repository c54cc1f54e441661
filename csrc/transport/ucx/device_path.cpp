#include "transport/ucx/device_path.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "transport/ucx/ucx.h"

namespace q7x2 {
namespace {

constexpr std::array<std::string_view, 3> kPaths = {"auto", "staged", "direct"};

}  // namespace

std::string_view to_string(DevicePath path) {
  return kPaths[static_cast<size_t>(path)];
}

DevicePath parse_device_path(std::string_view text, std::string_view what) {
  const auto found = std::ranges::find(kPaths, text);
  if (found == kPaths.end()) {
    throw Error(ErrorCode::kInvalidArgument, std::string(what) +
                                                 ": expected auto, staged or direct, got '" +
                                                 std::string(text.substr(0, 100)) + "'");
  }
  return static_cast<DevicePath>(found - kPaths.begin());
}

DeviceMemory device_memory_of(const UcpContext& context) {
  if (!context.takes(MemoryKind::kCuda)) return DeviceMemory::kNone;
  const bool maps = std::ranges::count(context.transports(), "cuda_ipc") > 0;
  return maps ? DeviceMemory::kMapped : DeviceMemory::kCopied;
}

}  // namespace q7x2
