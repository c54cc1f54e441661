#include "device/accelerators.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <optional>

#include "base/error.h"

namespace q7x2 {
namespace {

// The driver's functions, as declared in cuda.h. A CUstream is a pointer; the CUdeviceptr of pinned
// host memory is its address.
struct CudaDriver {
  int (*wait_value)(void* stream, uint64_t address, uint32_t value, unsigned flags) = nullptr;
  int (*launch_host_function)(void* stream, void (*call)(void*), void* argument) = nullptr;
  int (*is_capturing)(void* stream, int* status) = nullptr;
};

CudaDriver driver;

constexpr unsigned kWaitGeq = 0;  // CU_STREAM_WAIT_VALUE_GEQ, which compares by a signed difference

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// A process with CUDA tensors has already loaded the driver.
const StreamCalls* cuda_calls() {
  static const std::optional<StreamCalls> calls = []() -> std::optional<StreamCalls> {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr || !find(library, "cuStreamWaitValue32_v2", driver.wait_value) ||
        !find(library, "cuLaunchHostFunc", driver.launch_host_function) ||
        !find(library, "cuStreamIsCapturing", driver.is_capturing)) {
      return std::nullopt;
    }
    return StreamCalls{.size = sizeof(StreamCalls),
                       .wait_value =
                           [](void* stream, const uint32_t* flag, uint32_t value) {
                             return driver.wait_value(stream, reinterpret_cast<uint64_t>(flag),
                                                      value, kWaitGeq);
                           },
                       .call_host =
                           [](void* stream, void (*call)(void*), void* argument) {
                             return driver.launch_host_function(stream, call, argument);
                           },
                       .is_capturing =
                           [](void* stream, int* answer) {
                             int status = 0;
                             const int result = driver.is_capturing(stream, &status);
                             *answer = status != 0 ? 1 : 0;
                             return result;
                           }};
  }();
  return calls ? &*calls : nullptr;
}

struct Registry {
  std::mutex mutex;  // guards the next member
  struct Accelerator {
    const StreamCalls* calls;
    MemoryKind memory;
    bool operator==(const Accelerator&) const = default;
  };
  std::map<std::string, Accelerator> accelerators;  // by device type
};

Registry& registry() {
  static auto* const of_process = new Registry();
  return *of_process;
}

}  // namespace

void register_accelerator(const std::string& device_type, const StreamCalls& calls,
                          MemoryKind memory) {
  if (calls.size < sizeof(StreamCalls) || calls.wait_value == nullptr ||
      calls.call_host == nullptr || calls.is_capturing == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "the stream calls of '" + device_type + "' are incomplete: expected " +
                    std::to_string(sizeof(StreamCalls)) + " bytes with all functions, got " +
                    std::to_string(calls.size));
  }
  const std::lock_guard lock(registry().mutex);
  const Registry::Accelerator added{&calls, memory};
  const auto [found, is_new] = registry().accelerators.emplace(device_type, added);
  if (device_type == "cuda" || (!is_new && found->second != added)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the accelerator '" + device_type + "' has stream calls already");
  }
}

const StreamCalls* stream_calls(const std::string& device_type) {
  if (device_type == "cuda") return cuda_calls();
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().accelerators.find(device_type);
  return found == registry().accelerators.end() ? nullptr : found->second.calls;
}

MemoryKind memory_of_device(const std::string& device_type) {
  if (device_type == "cuda") return MemoryKind::kCuda;
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().accelerators.find(device_type);
  return found == registry().accelerators.end() ? MemoryKind::kHost : found->second.memory;
}

void check_stream_call(int result, const char* what) {
  if (result != 0) {
    throw Error(ErrorCode::kTransport,
                std::string(what) + " failed with the device's error " + std::to_string(result));
  }
}

}  // namespace q7x2
