// The WorkStreams (device/work_stream.h) of the devices that torch knows, in the words of c10
// alone.
//
// torch's pools hand out the same few streams again and again. A call's later work must not lie
// behind a gate of another call, or both would wait for ever. So the work streams are taken first,
// once per process and device, and `take_stream` never returns one of them.
#pragma once

#include <memory>

#include <c10/core/Stream.h>

#include "device/work_stream.h"

namespace q7x2 {

struct WorkStreams {
  std::shared_ptr<WorkStream> to_host;    ///< for what makes messages of inputs
  std::shared_ptr<WorkStream> to_device;  ///< for what reads messages
};
WorkStreams work_streams(const c10::Device& device);

/// From the pool of high priority, which users' own streams rarely come from.
c10::Stream take_stream(const c10::Device& device);

}  // namespace q7x2
