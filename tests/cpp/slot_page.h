// The file that the processes of a pool of slots share, for tests.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include "servers/slot_pool.h"

namespace q7x2::test {

class SlotPage {
 public:
  explicit SlotPage(size_t processes) : fd_(memfd_create("slots", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(processes * sizeof(uint64_t))), 0);
  }
  ~SlotPage() { close(fd_); }
  SlotPage(const SlotPage&) = delete;
  SlotPage& operator=(const SlotPage&) = delete;

  SlotPool pool(size_t own, uint64_t bytes) const { return {fd_, own, bytes}; }
  void clear(size_t process) const {
    const uint64_t nothing = 0;
    EXPECT_EQ(pwrite(fd_, &nothing, sizeof(nothing), static_cast<off_t>(process * 8)), 8);
  }

 private:
  const int fd_;
};

}  // namespace q7x2::test
