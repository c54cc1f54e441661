// Memory of the stand-in accelerator. Every page is mapped twice:
//
//   addresses that tensors have      kViewOffset      addresses that kernels use
//   [ device 0 | device 1 ]  PROT_NONE   -->   [ device 0 | device 1 ]  read and write
//
// So a program that touches device memory from the host faults, as with a GPU.
//
// The allocator caches as CUDA's does: freed memory is given to the next allocation on the same
// stream at once, and memory that another stream was recorded for when that stream has come by.
// What is freed is filled with 0xff (NaN) in the order of its stream, so whoever uses it too late,
// or on a stream that was not recorded, reads NaN.
#pragma once

#include <cstddef>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

namespace accelerator {

/// Of one device; pages take memory when they are touched.
inline constexpr size_t kDeviceBytes = size_t{1} << 32;

/// Where kernels find the device memory at `address`.
std::byte* kernel_view(const void* address);
c10::DeviceIndex device_of(const void* address);

/// Allocates on the current device, for its current stream.
c10::Allocator& device_allocator();
/// The memory is not used again before what `stream` has to do now is done.
void record_stream(const c10::DataPtr& memory, const c10::Stream& stream);
/// Of a device: taken by tensors, or not free to be used again.
size_t allocated_bytes(c10::DeviceIndex device);

/// Host memory that copies can use while the host goes on. Poisoned when it is freed, too.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* address);

/// Tells the stand-in for CUDA's driver, which this process has loaded, of the memory: it is that
/// of a CUDA device from now on.
void share_with_driver();

/// Grows or shrinks it; its bytes are copied on the current stream.
void resize_storage(c10::Storage storage, size_t bytes);

}  // namespace accelerator
