#include "memory.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "libcuda/adoption.h"
#include "stream.h"

namespace accelerator {
namespace {

constexpr size_t kViewOffset = kDeviceBytes * kDevices;
constexpr size_t kGranule = 512;
constexpr int kPoison = 0xff;

struct Mapping {
  std::byte* base;
  int file;
};

// Both views, the programs' first.
Mapping mapped() {
  const int file = memfd_create("stand-in accelerator", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ftruncate(file, kViewOffset) == 0, "no memory for the accelerator");
  void* const both =
      mmap(nullptr, 2 * kViewOffset, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(both != MAP_FAILED, "no addresses for the accelerator");
  auto* const base = static_cast<std::byte*>(both);
  const auto map = [&](std::byte* at, int protection) {
    TORCH_CHECK(
        mmap(at, kViewOffset, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0) == at,
        "cannot map the accelerator's memory");
  };
  map(base, PROT_NONE);
  map(base + kViewOffset, PROT_READ | PROT_WRITE);
  return {base, file};
}

const Mapping& mapping() {
  static const Mapping of_process = mapped();
  return of_process;
}

std::byte* base() {
  return mapping().base;
}

struct Block {
  c10::DeviceIndex device;
  size_t begin;  // from the device's first byte
  size_t bytes;
  c10::StreamId stream;                // on which it was allocated
  std::set<c10::StreamId> users = {};  // other streams
};

std::byte* address_of(const Block& block) {
  return base() + static_cast<size_t>(block.device) * kDeviceBytes + block.begin;
}

// Of one device.
struct Pool {
  size_t end = 0;  // from here on nothing was ever allocated
  size_t allocated = 0;
  std::map<c10::StreamId, std::multimap<size_t, size_t>> cached;  // by stream: length, begin
  std::map<size_t, size_t> spare;                                 // of no stream: begin, length
  struct Pending {
    Block block;
    std::vector<std::shared_ptr<Signal>> signals;
  };
  std::vector<Pending> pending;
};

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex index = current_device();
    const c10::Device device(kType, index);
    if (bytes == 0) return {nullptr, device};
    const std::lock_guard<std::mutex> lock(mutex_);
    Block block{index, 0, (bytes + kGranule - 1) / kGranule * kGranule, current_stream(index).id()};
    take(block);
    std::byte* const address = address_of(block);
    pools_[static_cast<size_t>(index)].allocated += block.bytes;
    blocks_.emplace(address, block);
    return {address, address, &release, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* destination, const void* source, size_t count) const override {
    queue_of(current_stream(-1)).enqueue([=] {
      std::memcpy(kernel_view(destination), kernel_view(source), count);
    });
  }

  void record(const c10::DataPtr& memory, const c10::Stream& stream) {
    if (memory.get() == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(static_cast<const std::byte*>(memory.get()));
    TORCH_CHECK(found != blocks_.end(), "record_stream: not memory of the stand-in accelerator");
    if (stream.id() != found->second.stream) found->second.users.insert(stream.id());
  }

  size_t allocated(c10::DeviceIndex device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Pool& pool = pools_.at(static_cast<size_t>(device));
    collect(pool);
    return pool.allocated;
  }

 private:
  static void release(void* address);

  void free(const std::byte* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(address);
    const Block block = found->second;
    blocks_.erase(found);
    Pool& pool = pools_[static_cast<size_t>(block.device)];
    if (block.users.empty()) {
      recycle(pool, block);
      return;
    }
    Pool::Pending& pending = pool.pending.emplace_back(Pool::Pending{block, {}});
    for (const c10::StreamId user : block.users) {
      pending.signals.push_back(accelerator::record(queue_of(block.device, user)));
    }
  }

  static void poison(const Block& block) {
    std::byte* const at = kernel_view(address_of(block));
    queue_of(block.device, block.stream).enqueue([at, bytes = block.bytes] {
      std::memset(at, kPoison, bytes);
    });
  }

  static void recycle(Pool& pool, const Block& block) {
    pool.allocated -= block.bytes;
    pool.cached[block.stream].emplace(block.bytes, block.begin);
  }

  static void collect(Pool& pool) {
    std::erase_if(pool.pending, [&](const Pool::Pending& pending) {
      const bool is_over = std::all_of(pending.signals.begin(), pending.signals.end(),
                                       [](const auto& signal) { return signal->is_set(); });
      if (is_over) recycle(pool, pending.block);
      return is_over;
    });
  }

  // Sets where the block lies, and how long it really is.
  void take(Block& block) {
    Pool& pool = pools_[static_cast<size_t>(block.device)];
    collect(pool);
    auto& cached = pool.cached[block.stream];
    const auto fit = cached.lower_bound(block.bytes);
    if (fit != cached.end() && fit->first <= 2 * block.bytes) {
      block.bytes = fit->first;
      block.begin = fit->second;
      cached.erase(fit);
    } else if (pool.end + block.bytes <= kDeviceBytes) {
      block.begin = std::exchange(pool.end, pool.end + block.bytes);
    } else if (!take_spare(pool, block)) {
      gather_spares(block.device);
      TORCH_CHECK(take_spare(pool, block), "the stand-in accelerator has no ", block.bytes,
                  " bytes of memory left");
    }
    poison(block);
  }

  static bool take_spare(Pool& pool, Block& block) {
    for (auto it = pool.spare.begin(); it != pool.spare.end(); ++it) {
      if (it->second < block.bytes) continue;
      block.begin = it->first;
      const size_t rest = it->second - block.bytes;
      if (rest > 0) pool.spare.emplace(it->first + block.bytes, rest);
      pool.spare.erase(it);
      return true;
    }
    return false;
  }

  // All that is cached belongs to no stream any more, once all streams have come by.
  void gather_spares(c10::DeviceIndex device) {
    Pool& pool = pools_[static_cast<size_t>(device)];
    synchronize_device(device);
    collect(pool);
    synchronize_device(device);
    for (const auto& [stream, blocks] : std::exchange(pool.cached, {})) {
      for (const auto& [bytes, begin] : blocks) pool.spare.emplace(begin, bytes);
    }
    for (auto it = pool.spare.begin(); it != pool.spare.end();) {
      const auto next = std::next(it);
      if (next != pool.spare.end() && it->first + it->second == next->first) {
        it->second += next->second;
        pool.spare.erase(next);
      } else {
        it = next;
      }
    }
  }

  std::mutex mutex_;  // guards all below
  std::array<Pool, kDevices> pools_;
  std::map<const std::byte*, Block> blocks_;
};

DeviceAllocator& devices() {
  static auto* const allocator = new DeviceAllocator();
  return *allocator;
}

void DeviceAllocator::release(void* address) {
  devices().free(static_cast<const std::byte*>(address));
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::kCPU);
    if (bytes == 0) return {nullptr, device};
    constexpr size_t kPage = 4096;
    const size_t length = (bytes + kPage - 1) / kPage * kPage;
    auto* const address = static_cast<std::byte*>(std::aligned_alloc(kPage, length));
    TORCH_CHECK(address != nullptr, "no ", bytes, " bytes of pinned memory");
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.emplace(address, length);
    return {address, address, &release, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* destination, const void* source, size_t count) const override {
    default_copy_data(destination, source, count);
  }

  bool holds(const std::byte* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto after = blocks_.upper_bound(address);
    return after != blocks_.begin() && address < std::prev(after)->first + std::prev(after)->second;
  }

 private:
  static void release(void* address);

  std::mutex mutex_;  // guards the next
  std::map<const std::byte*, size_t> blocks_;
};

PinnedAllocator& pinned() {
  static auto* const allocator = new PinnedAllocator();
  return *allocator;
}

void PinnedAllocator::release(void* address) {
  {
    const std::lock_guard<std::mutex> lock(pinned().mutex_);
    const auto found = pinned().blocks_.find(static_cast<const std::byte*>(address));
    std::memset(address, kPoison, found->second);
    pinned().blocks_.erase(found);
  }
  std::free(address);
}

}  // namespace

std::byte* kernel_view(const void* address) {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(address));
  TORCH_CHECK(at == nullptr || (at >= base() && at < base() + kViewOffset),
              "not memory of the stand-in accelerator");
  return at == nullptr ? nullptr : at + kViewOffset;
}

c10::DeviceIndex device_of(const void* address) {
  const std::byte* const kernels = kernel_view(address);
  TORCH_CHECK(kernels != nullptr, "a null pointer is on no device");
  return static_cast<c10::DeviceIndex>(static_cast<size_t>(kernels - kViewOffset - base()) /
                                       kDeviceBytes);
}

c10::Allocator& device_allocator() {
  return devices();
}

void record_stream(const c10::DataPtr& memory, const c10::Stream& stream) {
  devices().record(memory, stream);
}

size_t allocated_bytes(c10::DeviceIndex device) {
  return devices().allocated(device);
}

c10::Allocator& pinned_allocator() {
  return pinned();
}

bool is_pinned(const void* address) {
  return pinned().holds(static_cast<const std::byte*>(address));
}

void share_with_driver() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(driver != nullptr, "the stand-in for CUDA's driver is not loaded");
  const auto adopt = reinterpret_cast<decltype(&fake_cuda_adopt)>(dlsym(driver, "fake_cuda_adopt"));
  TORCH_CHECK(adopt != nullptr, "this is the driver of real devices");
  adopt(base(), base() + kViewOffset, kViewOffset, mapping().file);
}

void resize_storage(c10::Storage storage, size_t bytes) {
  const c10::DeviceIndex before = current_device();
  set_current_device(storage.device().index());
  c10::DataPtr memory = devices().allocate(bytes);
  if (const size_t kept = std::min(bytes, storage.nbytes()); kept > 0) {
    devices().copy_data(memory.get(), storage.data(), kept);
  }
  set_current_device(before);
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(bytes);
}

}  // namespace accelerator
