// Keys to shared memory come from other processes: those that cannot fit are refused.
#include "transport/shm/shared_memory.h"

#include <cstring>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "ranks.h"

namespace q7x2::test {
namespace {

constexpr size_t kBytes = size_t{1} << 16;

TEST(SharedMemory, IsMappedOnlyWithItsOwnLength) {
  run_ranks(2, [](Rank& rank) {
    const auto group = rank.group("g", {}, /*eager=*/true);
    std::optional<SharedMemory> own;
    if (rank.rank == 0) {
      const Locked locked(rank.runtime().lock());
      own.emplace(rank.runtime().reactor().context(), kBytes);
      std::memcpy(own->data(), "hello", 6);
      rank.put("key", own->key());
    } else {
      const std::string key = rank.get(0, "key");
      const Locked locked(rank.runtime().lock());
      const UcpEndpoint& endpoint = group->membership().peer(0).shared.endpoint();
      {
        const MappedMemory mapped(endpoint, key, kBytes);
        EXPECT_STREQ(reinterpret_cast<const char*>(mapped.data()), "hello");
      }
      const auto refusal = [&](const std::string& other, size_t bytes) {
        try {
          MappedMemory(endpoint, other, bytes);
          return std::string();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kTransport);
          return std::string(error.what());
        }
      };
      for (const size_t bytes : {kBytes - 1, kBytes + 1, size_t{0}, ~size_t{0}}) {
        EXPECT_NE(refusal(key, bytes).find("65536 bytes, expected"), std::string::npos) << bytes;
      }
      for (size_t length = 0; length <= 16; ++length) {
        EXPECT_NE(refusal(key.substr(0, length), kBytes).find("cut short"), std::string::npos);
      }
    }
    rank.barrier();
    const Locked locked(rank.runtime().lock());
    own.reset();
  });
}

}  // namespace
}  // namespace q7x2::test
