#include <cuda_runtime_api.h>

#include "base/error.h"
#include "device/launch.h"
#include "device/runtime.h"

namespace q7x2 {
namespace {

std::string explain(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver: {
      int version = 0;
      cudaDriverGetVersion(&version);
      return version == 0 ? "no CUDA driver" : "the CUDA driver is older than the runtime needs";
    }
    case cudaErrorNoDevice:
      return "a CUDA driver, but no device (or CUDA_VISIBLE_DEVICES hides it)";
    default:
      return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
  }
}

}  // namespace

namespace device {

void check_launch(const char* what) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    throw Error(ErrorCode::kInternal, std::string(what) + ": " + explain(status));
}

}  // namespace device

CudaInfo cuda_info() {
  CudaInfo info;
  info.built = true;
  info.runtime_version = CUDART_VERSION;
  if (cudaDriverGetVersion(&info.driver_version) != cudaSuccess) info.driver_version = 0;

  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  for (int index = 0; error == cudaSuccess && index < count; ++index) {
    cudaDeviceProp properties{};
    char bus_id[32] = {};
    error = cudaGetDeviceProperties(&properties, index);
    if (error == cudaSuccess) error = cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), index);
    if (error != cudaSuccess) break;
    info.devices.push_back(
        {properties.name, bus_id, properties.major, properties.minor, properties.totalGlobalMem});
  }
  if (error != cudaSuccess) {
    info.problem = explain(error);
    cudaGetLastError();  // so that the user's own CUDA calls do not see this error
  }
  return info;
}

}  // namespace q7x2
