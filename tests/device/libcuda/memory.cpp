#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "adoption.h"

namespace fake_cuda {
namespace {

constexpr uint64_t kMagic = 0x71377832'63756461;
constexpr size_t kPage = 4096;

size_t whole_pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

DeviceMemory& DeviceMemory::of_process() {
  static auto* const memory = new DeviceMemory();
  return *memory;
}

CUresult DeviceMemory::allocate(size_t bytes, CUdeviceptr& address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const int file = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (ftruncate(file, static_cast<off_t>(whole_pages(bytes))) != 0) {
    close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return map(file, bytes, false, address);
}

CUresult DeviceMemory::free(CUdeviceptr address) {
  return release(address, false);
}

CUresult DeviceMemory::export_handle(CUdeviceptr address, CUipcMemHandle& handle) {
  const std::optional<Allocation> found = find(address);
  if (!found || found->is_imported) return CUDA_ERROR_INVALID_VALUE;
  const Exported exported = {kMagic, found->bytes, getpid(), found->file};
  static_assert(sizeof(exported) <= sizeof(handle.reserved));
  std::memset(&handle, 0, sizeof(handle));
  std::memcpy(handle.reserved, &exported, sizeof(exported));
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::import_handle(const CUipcMemHandle& handle, CUdeviceptr& address) {
  Exported exported{};
  std::memcpy(&exported, handle.reserved, sizeof(exported));
  if (exported.magic != kMagic) return CUDA_ERROR_INVALID_HANDLE;
  if (exported.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // as CUDA does
  const std::string path =
      "/proc/" + std::to_string(exported.process) + "/fd/" + std::to_string(exported.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return CUDA_ERROR_INVALID_HANDLE;
  return map(file, exported.bytes, true, address);
}

CUresult DeviceMemory::close_import(CUdeviceptr address) {
  return release(address, true);
}

CUresult DeviceMemory::map(int file, size_t bytes, bool is_imported, CUdeviceptr& address) {
  const size_t length = whole_pages(bytes);
  void* const program = mmap(nullptr, length, PROT_NONE, MAP_SHARED, file, 0);
  void* const view = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (program == MAP_FAILED || view == MAP_FAILED) {
    if (program != MAP_FAILED) munmap(program, length);
    if (view != MAP_FAILED) munmap(view, length);
    close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  address = reinterpret_cast<CUdeviceptr>(program);
  const std::lock_guard lock(mutex_);
  allocations_[address] = {static_cast<std::byte*>(program),
                           static_cast<std::byte*>(view),
                           bytes,
                           ++last_id_,
                           file,
                           is_imported};
  return CUDA_SUCCESS;
}

void DeviceMemory::adopt(std::byte* address, std::byte* view, size_t bytes, int file) {
  const std::lock_guard lock(mutex_);
  allocations_[reinterpret_cast<CUdeviceptr>(address)] = {address,    view, bytes,
                                                          ++last_id_, file, false};
}

CUresult DeviceMemory::release(CUdeviceptr address, bool is_imported) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.is_imported != is_imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t length = whole_pages(found->second.bytes);
  munmap(found->second.address, length);
  munmap(found->second.view, length);
  close(found->second.file);
  allocations_.erase(found);
  return CUDA_SUCCESS;
}

std::optional<Allocation> DeviceMemory::find(CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  const auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(after)->second;
  const CUdeviceptr base = std::prev(after)->first;
  if (address >= base + allocation.bytes) return std::nullopt;
  return allocation;
}

std::optional<Place> place(CUdeviceptr address, size_t bytes) {
  const std::optional<Allocation> found = DeviceMemory::of_process().find(address);
  auto* const pointer = reinterpret_cast<std::byte*>(address);
  if (!found) return Place{pointer, false, false};
  const auto offset = static_cast<size_t>(pointer - found->address);
  if (bytes > found->bytes - offset) return std::nullopt;
  return Place{found->view + offset, true, found->is_imported};
}

}  // namespace fake_cuda

// Whoever has memory of a device has made its context, as torch does.
void fake_cuda_adopt(void* address, void* view, uint64_t bytes, int file) {
  CUcontext context = nullptr;
  cuDevicePrimaryCtxRetain(&context, 0);
  fake_cuda::DeviceMemory::of_process().adopt(static_cast<std::byte*>(address),
                                              static_cast<std::byte*>(view), bytes, file);
}
