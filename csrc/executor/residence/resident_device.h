// ResidentDevice: the device on which a call's elements stay, with its streams and kernels for the
// call.
#pragma once

#include <memory>

#include "device/bus_traffic.h"
#include "device/work_stream.h"
#include "kernels/cuda/codec_kernels.h"

namespace q7x2 {

struct ResidentDevice {
  std::shared_ptr<WorkStream> to_host;    ///< encodes inputs
  std::shared_ptr<WorkStream> to_device;  ///< reads messages; all work of direct calls
  const CodecKernels* kernels = nullptr;  ///< null: there are none
  std::shared_ptr<BusTraffic> traffic = std::make_shared<BusTraffic>();
};

}  // namespace q7x2
