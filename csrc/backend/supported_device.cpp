#include "backend/supported_device.h"

#include <string>

#include <c10/util/Exception.h>

namespace q7x2 {
namespace {

std::string name_of(const c10::Device& device) {
  return c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

}  // namespace

void check_device(const c10::Device& device) {
  TORCH_CHECK(device.is_cpu() || stream_calls(name_of(device)) != nullptr,
              "q7x2: invalid tensor device: expected cpu, cuda, or an accelerator that "
              "q7x2.groups.register_accelerator was called for, got ",
              device);
}

const StreamCalls& calls_of(const c10::Device& device) {
  check_device(device);
  return *stream_calls(name_of(device));
}

}  // namespace q7x2
