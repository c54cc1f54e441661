#include "base/recycled.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace q7x2 {
namespace {

struct Kept {
  std::unique_ptr<std::byte[]> data;
  size_t bytes;
};

struct Store {
  std::mutex mutex;
  std::vector<Kept> all;
  size_t bytes = 0;
};

// Never destroyed: arrays may outlive static objects.
Store& store() {
  static Store& one = *new Store;
  return one;
}

}  // namespace

RecycledMemory::RecycledMemory(size_t bytes) {
  if (bytes == 0) return;
  {
    const std::lock_guard lock(store().mutex);
    std::vector<Kept>& all = store().all;
    const auto fits = [bytes](const Kept& each) {
      return each.bytes >= bytes && each.bytes / 2 <= bytes;
    };
    const auto found = std::ranges::find_if(all, fits);
    if (found != all.end()) {
      data_ = std::move(found->data);
      bytes_ = found->bytes;
      store().bytes -= bytes_;
      all.erase(found);
      return;
    }
  }
  data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  bytes_ = bytes;
}

RecycledMemory::~RecycledMemory() {
  if (!data_) return;
  const std::lock_guard lock(store().mutex);
  std::vector<Kept>& all = store().all;
  // Frees the memory that has been kept for longest.
  while (!all.empty() && store().bytes + bytes_ > kMostKept) {
    store().bytes -= all.front().bytes;
    all.erase(all.begin());
  }
  if (bytes_ > kMostKept) return;
  store().bytes += bytes_;
  all.push_back({std::move(data_), bytes_});
}

}  // namespace q7x2
