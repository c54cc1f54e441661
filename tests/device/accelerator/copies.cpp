// Copies to, from and between devices. As with CUDA, a copy to or from pinned memory with
// non_blocking=True leaves the host free, and every other one blocks it.
#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <torch/library.h>

#include "kernels.h"
#include "memory.h"

namespace accelerator {
namespace {

enum Direction { kToDevice, kToHost };

// One per device and direction.
struct Engine {
  std::mutex is_busy;
};

std::atomic<double> rate{0};
std::array<std::atomic<uint64_t>, 2> copied;  // by direction

template <typename Copy>
void at_rate(c10::DeviceIndex device, Direction direction, size_t bytes, const Copy& copy) {
  static auto* const engines = new std::array<std::array<Engine, 2>, kDevices>();
  const std::lock_guard<std::mutex> lock(
      (*engines)[static_cast<size_t>(device)][direction].is_busy);
  const auto begin = std::chrono::steady_clock::now();
  copy();
  copied[direction] += bytes;
  if (const double limit = rate; limit > 0) {
    std::this_thread::sleep_until(
        begin + std::chrono::duration_cast<std::chrono::nanoseconds>(
                    std::chrono::duration<double>(static_cast<double>(bytes) / limit)));
  }
}

void between_host_and_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const Direction direction = is_ours(to) ? kToDevice : kToHost;
  const at::Tensor& ours = direction == kToDevice ? to : from;
  const at::Tensor& host = direction == kToDevice ? from : to;
  const c10::DeviceIndex device = ours.device().index();
  // Keeps pinned memory until it is copied, as a pinned allocator does that records events.
  const at::Tensor kept = host.detach();
  const at::Tensor view = as_kernels_see(ours);
  launch(device, [device, direction, kept, view] {
    at_rate(device, direction, view.nbytes(), [&] {
      at::Tensor destination = direction == kToDevice ? view : kept;
      destination.copy_(direction == kToDevice ? kept : view);
    });
  });
  if (!non_blocking || !is_pinned(host.const_data_ptr())) {
    queue_of(current_stream(device)).synchronize();
  }
}

// On the current stream of the source, between what both devices' current streams do.
void between_devices(const at::Tensor& from, const at::Tensor& to) {
  const c10::DeviceIndex source = from.device().index();
  Queue& copies = queue_of(current_stream(source));
  Queue& other = queue_of(current_stream(to.device().index()));
  if (&copies != &other) block(copies, record(other));
  launch(source, [view = as_kernels_see(from), destination = as_kernels_see(to)]() mutable {
    destination.copy_(view);
  });
  if (&copies != &other) block(other, record(copies));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  const at::Tensor source = from.sizes() == to.sizes() ? from : from.expand(to.sizes());
  if (is_ours(from) && is_ours(to)) {
    between_devices(source, to);
  } else {
    between_host_and_device(source, to, non_blocking);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

}  // namespace

void set_copy_rate(double bytes_per_second) {
  rate = bytes_per_second;
}

Copied copied_bytes() {
  return {.to_device = copied[kToDevice], .to_host = copied[kToHost]};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
}

}  // namespace accelerator
