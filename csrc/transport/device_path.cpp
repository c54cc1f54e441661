#include "transport/device_path.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "transport/card.h"
#include "transport/ucx.h"

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

DevicePathOfGroup device_path_of(const std::vector<Card>& cards) {
  const auto all = [&](const auto& holds) { return std::ranges::all_of(cards, holds); };
  switch (cards.front().device_path) {
    case DevicePath::kStaged:
      return {};
    case DevicePath::kAuto:
      return {.is_direct = all([&](const Card& card) {
                return card.host_key == cards.front().host_key &&
                       card.device_memory == DeviceMemory::kMapped;
              }),
              .obstacle = {}};
    case DevicePath::kDirect:
      break;
  }
  const auto without = std::ranges::find(cards, DeviceMemory::kNone, &Card::device_memory);
  if (without == cards.end()) return {.is_direct = true, .obstacle = {}};
  return {.is_direct = false,
          .obstacle = "UCX cannot send memory of a device from rank " +
                      std::to_string(without - cards.begin()) +
                      ": expected its transport cuda_copy, got '" + without->transports + "'"};
}

}  // namespace q7x2
