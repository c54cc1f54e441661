// Memory of the device that is none. The addresses that a program has are mapped PROT_NONE, so a
// program that touches device memory from the host faults. A second mapping is for copies.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include <cuda.h>

namespace fake_cuda {

struct Allocation {
  std::byte* address = nullptr;  ///< for the program
  std::byte* view = nullptr;     ///< for copies
  size_t bytes = 0;
  uint64_t id = 0;  ///< unique in the process
  int file = -1;    ///< of the memory, which another process may map, too
  bool is_imported = false;
};

/// What one process tells another in a CUipcMemHandle.
struct Exported {
  uint64_t magic;
  uint64_t bytes;
  int32_t process;
  int32_t file;
};

class DeviceMemory {
 public:
  static DeviceMemory& of_process();

  /// Each of these returns CUDA's status.
  CUresult allocate(size_t bytes, CUdeviceptr& address);
  CUresult free(CUdeviceptr address);
  CUresult export_handle(CUdeviceptr address, CUipcMemHandle& handle);
  CUresult import_handle(const CUipcMemHandle& handle, CUdeviceptr& address);
  CUresult close_import(CUdeviceptr address);

  /// Takes over memory that is mapped already; see adoption.h.
  void adopt(std::byte* address, std::byte* view, size_t bytes, int file);

  /// The allocation that holds `address`.
  std::optional<Allocation> find(CUdeviceptr address);

 private:
  CUresult map(int file, size_t bytes, bool is_imported, CUdeviceptr& address);
  CUresult release(CUdeviceptr address, bool is_imported);

  std::mutex mutex_;  // guards the next
  std::map<CUdeviceptr, Allocation> allocations_;
  uint64_t last_id_ = 0;
};

/// Where a copy finds `bytes` bytes at an address of the device or the host.
struct Place {
  std::byte* at = nullptr;
  bool is_on_device = false;
  bool is_imported = false;
};

/// Nothing if the bytes go beyond their allocation.
std::optional<Place> place(CUdeviceptr address, size_t bytes);

}  // namespace fake_cuda
