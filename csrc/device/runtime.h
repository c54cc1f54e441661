// Queries of CUDA's runtime. Also works in a build without CUDA, and reports that. Kernels are
// started through device/launch.h.
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
  bool built = false;       ///< whether the CUDA sources are part of this build
  int runtime_version = 0;  ///< 1000 * major + 10 * minor, for the toolkit that is linked
  int driver_version = 0;  ///< the newest CUDA version that the driver supports; 0 without a driver
  std::string problem;     ///< why `devices` is empty, in words; empty if it is not
  std::vector<CudaDevice> devices;
};

#if Q7X2_HAVE_CUDA
/// Asks the driver. Creates no context and never throws: errors are reported in `problem`.
CudaInfo cuda_info();
#else
inline CudaInfo cuda_info() {
  CudaInfo info;
  info.problem = "built without CUDA";
  return info;
}
#endif

}  // namespace q7x2
