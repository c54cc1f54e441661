// Scratch memory: aligned, large enough, its own, reused, and returned above a limit.
#include "transport/run/scratch_pool.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

TEST(ScratchPool, IsAlignedAndLargeEnough) {
  ScratchPool pool;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{257},
                             size_t{4096}, (size_t{1} << 20) + 1}) {
    const ScratchPool::Buffer buffer = pool.take(bytes);
    ASSERT_NE(buffer.data, nullptr);
    EXPECT_GE(buffer.bytes, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data) % 64, 0U);
    std::memset(buffer.data, 0xab, buffer.bytes);
    pool.release(buffer);
  }
}

TEST(ScratchPool, ReusesTheWarmestBuffer) {
  ScratchPool pool;
  const ScratchPool::Buffer first = pool.take(1000);
  const ScratchPool::Buffer second = pool.take(1000);
  EXPECT_NE(first.data, second.data);
  pool.release(first);
  pool.release(second);
  EXPECT_EQ(pool.take(900).data, second.data);
  EXPECT_EQ(pool.take(1024).data, first.data);
  pool.release(first);
  pool.release(second);
}

TEST(ScratchPool, NothingGivenBackIsNothing) {
  ScratchPool pool;
  pool.release({});
  ScratchPool::destroy({});
}

TEST(ScratchPool, BuffersOutliveNeitherPoolNorLimit) {
  // Far more than a pool keeps; what it does not keep is freed, as a leak checker would notice.
  constexpr size_t kBytes = size_t{16} << 20;
  ScratchPool pool;
  std::vector<ScratchPool::Buffer> buffers;
  for (int i = 0; i < 16; ++i) buffers.push_back(pool.take(kBytes));
  for (const ScratchPool::Buffer& buffer : buffers) pool.release(buffer);
  pool.release(pool.take(kBytes));
}

TEST(ScratchPool, BuffersInUseNeverOverlap) {
  struct Held {
    ScratchPool::Buffer buffer;
    unsigned char mark;
  };
  ScratchPool pool;
  std::mt19937_64 random(4);
  std::vector<Held> held;
  for (int i = 0; i < 5000; ++i) {
    if (held.size() < 32 && random() % 2 == 0) {
      const ScratchPool::Buffer buffer = pool.take(random() % 5000);
      const auto mark = static_cast<unsigned char>(random());
      std::memset(buffer.data, mark, buffer.bytes);
      held.push_back({buffer, mark});
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const auto* bytes = reinterpret_cast<const unsigned char*>(held.back().buffer.data);
      for (size_t k = 0; k < held.back().buffer.bytes; ++k) ASSERT_EQ(bytes[k], held.back().mark);
      random() % 8 == 0 ? ScratchPool::destroy(held.back().buffer)
                        : pool.release(held.back().buffer);
      held.pop_back();
    }
  }
  for (const Held& each : held) pool.release(each.buffer);
}

}  // namespace
}  // namespace q7x2
