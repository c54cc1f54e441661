// The WorkStreams (device/work_stream.h) of torch's devices, using c10's functions only.
//
// torch's stream pools hand out the same few streams repeatedly. Later work of a call must not be
// behind a gate of another call on the same stream, or both would wait forever. So the work streams
// are taken first, once per process and device, and `take_stream` never returns one of them.
#pragma once

#include <memory>

#include <c10/core/Stream.h>

#include "device/work_stream.h"

namespace q7x2 {

struct WorkStreams {
  std::shared_ptr<WorkStream> to_host;    ///< for work that makes messages from inputs
  std::shared_ptr<WorkStream> to_device;  ///< for work that reads messages
};
WorkStreams work_streams(const c10::Device& device);

/// Returns a stream from the pool with high priority, which users' own streams rarely come from.
c10::Stream take_stream(const c10::Device& device);

}  // namespace q7x2
