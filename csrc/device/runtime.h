// What is not the same for every kind of device: the questions to CUDA's runtime. Works in a build
// without CUDA, which says so. Kernels are started through device/launch.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace q7x2 {

struct CudaDevice {
  std::string name;
  std::string pci_bus_id;  ///< "0000:3b:00.0"
  int compute_capability_major = 0;
  int compute_capability_minor = 0;
  uint64_t memory_bytes = 0;
};

struct CudaInfo {
  bool built = false;       ///< the CUDA sources are part of this build
  int runtime_version = 0;  ///< 1000 * major + 10 * minor, of the toolkit linked in
  int driver_version = 0;   ///< the newest CUDA version the driver runs; 0 without a driver
  std::string problem;      ///< why `devices` is empty, in words; empty where it is not
  std::vector<CudaDevice> devices;
};

#if Q7X2_HAVE_CUDA
/// Asks the driver. Creates no context and never throws: what fails is in `problem`.
CudaInfo cuda_info();
#else
inline CudaInfo cuda_info() {
  CudaInfo info;
  info.problem = "built without CUDA";
  return info;
}
#endif

}  // namespace q7x2
