// The Python module of the stand-in accelerator: what torch.<name> is made of, and what tests
// control it with.
#include <torch/csrc/utils/pybind.h>

#include "codec_kernels.h"
#include "hooks.h"
#include "kernels.h"
#include "memory.h"
#include "stream.h"
#include "stream_calls.h"

namespace py = pybind11;
using namespace accelerator;

PYBIND11_MODULE(stand_in_accelerator, module) {
  register_hooks();
  const py::call_guard<py::gil_scoped_release> no_gil;

  module.def("device_count", [] { return int{kDevices}; });
  module.def("current_device", [] { return int{current_device()}; });
  module.def("set_device",
             [](int device) { set_current_device(static_cast<c10::DeviceIndex>(device)); });
  module.def("seed_all", &seed_all, py::arg("seed"));
  module.def("allocated_bytes",
             [](int device) { return allocated_bytes(static_cast<c10::DeviceIndex>(device)); });
  module.def(
      "synchronize", [](int device) { synchronize_device(static_cast<c10::DeviceIndex>(device)); },
      py::arg("device"), no_gil);
  module.def("host_waits", &host_waits);
  module.def("set_copy_rate", &set_copy_rate, py::arg("bytes_per_second"));
  module.def("copied_bytes", [] {
    const Copied copied = copied_bytes();
    return py::make_tuple(copied.to_host, copied.to_device);
  });

  module.def("share_with_driver", &share_with_driver);
  module.def("stream_calls", [] { return py::capsule(stream_calls(), "q7x2.stream_calls"); });
  module.def("codec_kernels", [] { return py::capsule(codec_kernels(), "q7x2.codec_kernels"); });
  py::enum_<LeftOut>(module, "LeftOut")
      .value("nothing", LeftOut::kNothing)
      .value("ready", LeftOut::kReady)
      .value("done", LeftOut::kDone)
      .value("record", LeftOut::kRecord)
      .value("gate", LeftOut::kGate)
      .value("opening", LeftOut::kOpening);
  module.attr("first_high_priority") = kPoolStreams + 1;
  module.attr("streams") = kStreams;
  module.def("leave_out", &leave_out, py::arg("what"));

  const auto queue = [](int device, int64_t stream) -> Queue& {
    return queue_of(static_cast<c10::DeviceIndex>(device), stream);
  };
  module.def("pause", [=](int device, int64_t stream) { queue(device, stream).pause(); });
  module.def("resume", [=](int device, int64_t stream) { queue(device, stream).resume(); });
  module.def("step", [=](int device, int64_t stream, size_t operations) {
    queue(device, stream).step(operations);
  });
  module.def("slow_down", [=](int device, int64_t stream, double seconds) {
    queue(device, stream).slow_down(std::chrono::duration<double>(seconds));
  });
  module.def("set_capturing", [=](int device, int64_t stream, bool is_capturing) {
    queue(device, stream).is_capturing = is_capturing;
  });
}
