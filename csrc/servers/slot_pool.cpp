#include "servers/slot_pool.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace q7x2 {

SlotPool::SlotPool(int fd, size_t own, uint64_t bytes) : own_(own), bytes_(bytes) {
  struct stat file {};
  const bool is_file = fstat(fd, &file) == 0 && file.st_size >= 0;
  const size_t numbers = is_file ? static_cast<size_t>(file.st_size) / sizeof(uint64_t) : 0;
  if (own >= numbers) {
    throw Error(ErrorCode::kInvalidArgument, "a pool of slots for " + std::to_string(numbers) +
                                                 " processes has no number " + std::to_string(own) +
                                                 ": expected a file of 8 bytes for each process");
  }
  const size_t length = numbers * sizeof(uint64_t);
  void* const memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::kInvalidArgument,
                "the pool of slots cannot be mapped: " + std::string(std::strerror(errno)));
  }
  memory_ = {static_cast<uint64_t*>(memory), Unmap{length}};
  held_ = {memory_.get(), numbers};
}

void SlotPool::Unmap::operator()(uint64_t* memory) const {
  munmap(memory, bytes);
}

size_t SlotPool::take(size_t slot_bytes, size_t wanted) {
  if (held_.empty() || slot_bytes == 0) return wanted;
  std::atomic_ref<uint64_t>(held_[own_]).fetch_add(slot_bytes * wanted);
  uint64_t sum = 0;
  for (uint64_t& held : held_) sum += std::atomic_ref<uint64_t>(held).load();
  if (sum <= bytes_) return wanted;
  const uint64_t surplus = (sum - bytes_ + slot_bytes - 1) / slot_bytes;
  const size_t returned = static_cast<size_t>(std::min<uint64_t>(surplus, wanted));
  give_back(slot_bytes, returned);
  return wanted - returned;
}

void SlotPool::give_back(size_t slot_bytes, size_t slots) {
  if (held_.empty()) return;
  std::atomic_ref<uint64_t>(held_[own_]).fetch_sub(slot_bytes * slots);
}

TakenSlots::TakenSlots(std::shared_ptr<SlotPool> pool, size_t slot_bytes, size_t least,
                       size_t wanted)
    : pool_(std::move(pool)), slot_bytes_(slot_bytes), count_(pool_->take(slot_bytes, wanted)) {
  if (count_ < least) give_back();
}

void TakenSlots::give_back() {
  pool_->give_back(slot_bytes_, std::exchange(count_, 0));
}

}  // namespace q7x2
