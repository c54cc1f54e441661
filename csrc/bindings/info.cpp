#include "bindings/info.h"

#include <hwloc.h>
#include <pybind11/stl.h>
#include <torch/version.h>

#include "base/log.h"
#include "base/version.h"
#include "device/runtime.h"
#include "fabric/host.h"
#include "transport/ucx/ucx_info.h"

namespace q7x2 {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

py::dict build_info() {
  const CudaInfo cuda = cuda_info();
  return py::dict(
      "version"_a = kVersion, "compiler"_a = "g++ " __VERSION__, "torch_version"_a = TORCH_VERSION,
      "ucx_headers"_a = ucx_header_version(), "hwloc"_a = HWLOC_VERSION,
      "cuda"_a = cuda.built ? py::object(py::str(cuda_version_text(cuda.runtime_version)))
                            : py::object(py::none()));
}

py::dict ucx_info_dict() {
  const UcxInfo info = ucx_info();
  return py::dict("version"_a = info.version, "library"_a = info.library,
                  "resources"_a = info.resources);
}

py::list device_list(const std::vector<IoDevice>& devices) {
  py::list list;
  for (const IoDevice& device : devices) {
    list.append(py::dict("name"_a = device.name, "pci_bus_id"_a = device.pci_bus_id,
                         "numa_node"_a = device.numa_node));
  }
  return list;
}

py::dict host_info_dict() {
  const HostInfo info = host_info();
  py::list interfaces;
  for (const NetworkInterface& interface : info.network_interfaces) {
    interfaces.append(py::dict("name"_a = interface.name, "addresses"_a = interface.addresses,
                               "up"_a = interface.up, "loopback"_a = interface.loopback,
                               "megabits_per_second"_a = interface.megabits_per_second,
                               "numa_node"_a = interface.numa_node));
  }
  return py::dict("hostname"_a = info.hostname, "host_key"_a = host_key(),
                  "boot_id"_a = info.boot_id, "pid_namespace"_a = info.pid_namespace,
                  "ipc_namespace"_a = info.ipc_namespace, "net_namespace"_a = info.net_namespace,
                  "cpu_model"_a = info.cpu_model, "usable_cpus"_a = info.usable_cpus,
                  "packages"_a = info.packages, "numa_nodes"_a = info.numa_nodes,
                  "cores"_a = info.cores, "hardware_threads"_a = info.hardware_threads,
                  "memory_bytes"_a = info.memory_bytes, "network_interfaces"_a = interfaces,
                  "rdma_devices"_a = device_list(info.rdma_devices),
                  "gpus"_a = device_list(info.gpus));
}

py::dict cuda_info_dict() {
  const CudaInfo info = cuda_info();
  py::list devices;
  for (const CudaDevice& device : info.devices) {
    devices.append(
        py::dict("name"_a = device.name, "pci_bus_id"_a = device.pci_bus_id,
                 "compute_capability"_a = std::to_string(device.compute_capability_major) + "." +
                                          std::to_string(device.compute_capability_minor),
                 "memory_bytes"_a = device.memory_bytes));
  }
  return py::dict("built"_a = info.built,
                  "driver"_a = info.driver_version > 0
                                   ? py::object(py::str(cuda_version_text(info.driver_version)))
                                   : py::object(py::none()),
                  "problem"_a = info.problem, "devices"_a = devices);
}

}  // namespace

void bind_info(py::module_& module) {
  module.def("build_info", &build_info, "What this module was compiled with.");
  module.def("ucx_info", &ucx_info_dict,
             "The UCX that was loaded, and its transports and devices.");
  module.def("host_info", &host_info_dict, "This host's topology, memory, interfaces and devices.");
  module.def("cuda_info", &cuda_info_dict, "The CUDA driver and devices.");
  module.def(
      "log_info", [](const std::string& text) { log(Level::kInfo, text); }, "text"_a,
      "Write a line to stderr if Q7X2_LOG is info or debug.");
}

}  // namespace q7x2
