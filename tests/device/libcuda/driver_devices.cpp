// CUDA's driver: one device, its primary context, and what is asked about pointers.
#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include <cuda.h>

#include "memory.h"
#include "streams.h"

// The primary context of the device. CUDA says no more of this type.
struct CUctx_st {
  std::atomic<int> users{0};
};

namespace {

using fake_cuda::Allocation;
using fake_cuda::DeviceMemory;

constexpr unsigned long long kContextId = 1;
constexpr size_t kDeviceBytes = size_t{80} << 30;
constexpr char kName[] = "Stand-in for a GPU";
constexpr char kUuid[] = "q7x2 stand-in 00";

CUctx_st primary;
thread_local std::vector<CUcontext> current;

template <class T>
CUresult answer(void* data, T value) {
  std::memcpy(data, &value, sizeof(value));
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, const Allocation& memory) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return answer<CUcontext>(data, &primary);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer<unsigned>(data, CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return answer<unsigned long long>(data, memory.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer<int>(data, 0);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return answer<int>(data, memory.is_imported ? 0 : 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer<uint64_t>(data, 0);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer<CUmemoryPool>(data, nullptr);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// Bytes of an attribute's value.
size_t attribute_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return sizeof(int);
    default:
      return sizeof(uint64_t);
  }
}

}  // namespace

CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  thread_local std::string last;
  last = "CUDA error " + std::to_string(static_cast<int>(error)) + " of the stand-in";
  *text = last.c_str();
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int, cuuint64_t,
                          CUdriverProcAddressQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, symbol);
  if (result != nullptr) {
    *result =
        *function == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::strncpy(name, kName, static_cast<size_t>(length));
  name[length - 1] = '\0';
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice) {
  static_assert(sizeof(kUuid) > sizeof(uuid->bytes));
  std::memcpy(uuid->bytes, kUuid, sizeof(uuid->bytes));
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = kDeviceBytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = 0xfe;  // a bus that machines do not have
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    default:  // features that it does not have
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = primary.users > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  ++primary.users;
  *context = &primary;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) {
  if (primary.users == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --primary.users;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  if (context != &primary) return CUDA_ERROR_INVALID_CONTEXT;
  current.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = current.back();
  current.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current.empty() ? nullptr : current.back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return current.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  *id = kContextId;
  return context == nullptr && current.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return DeviceMemory::of_process().allocate(bytes, *address);
}

CUresult cuMemFree(CUdeviceptr address) {
  return DeviceMemory::of_process().free(address);
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const auto found = DeviceMemory::of_process().find(address);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(found->address);
  if (bytes != nullptr) *bytes = found->bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void*, size_t, unsigned) {
  return CUDA_SUCCESS;  // the copy engines reach all of the host's memory
}

CUresult cuMemHostUnregister(void*) {
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (fake_cuda::in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
  const auto found = DeviceMemory::of_process().find(address);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  return pointer_attribute(data, attribute, *found);
}

// Zeros, and no error, for the host's memory.
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  if (fake_cuda::in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
  const auto found = DeviceMemory::of_process().find(address);
  for (unsigned i = 0; i < count; ++i) {
    if (!found) {
      std::memset(data[i], 0, attribute_bytes(attributes[i]));
    } else if (const CUresult status = pointer_attribute(data[i], attributes[i], *found);
               status != CUDA_SUCCESS) {
      return status;
    }
  }
  return CUDA_SUCCESS;
}

// Of those that can be set, UCX knows the order of copies, which are all in order here.
CUresult cuPointerSetAttribute(const void*, CUpointer_attribute, CUdeviceptr address) {
  return DeviceMemory::of_process().find(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return DeviceMemory::of_process().export_handle(address, *handle);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return DeviceMemory::of_process().import_handle(handle, *address);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return DeviceMemory::of_process().close_import(address);
}
