// UCX_TLS without the transports that a machine cannot give.
#include "transport/quirks/shared_memory_limits.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

TEST(SharedMemoryLimits, AnOpenListLosesOneTransport) {
  EXPECT_EQ(without_transports("all", {"posix"}), "^posix");
  EXPECT_EQ(without_transports("self,all", {"posix", "sysv"}), "^posix,sysv");
  EXPECT_EQ(without_transports("^cuda_ipc", {"sysv"}), "^cuda_ipc,sysv");
}

TEST(SharedMemoryLimits, AListOfTheUsersKeepsItsOthers) {
  EXPECT_EQ(without_transports("posix,tcp", {"posix"}), "tcp");
  EXPECT_EQ(without_transports("self,sysv,\\posix", {"posix"}), "self,sysv");
  EXPECT_EQ(without_transports("shm", {"posix"}), "cma,knem,sysv,xpmem");
  EXPECT_EQ(without_transports("mm,tcp", {"posix", "sysv"}), "tcp,xpmem");
  EXPECT_EQ(without_transports("tcp,rc:aux", {"posix"}), "rc:aux,tcp");
}

TEST(SharedMemoryLimits, NothingIsLeftWithoutATransportThatCarriesMessages) {
  EXPECT_EQ(without_transports("posix", {"posix"}), std::nullopt);
  EXPECT_EQ(without_transports("self,posix", {"posix"}), std::nullopt);
  EXPECT_EQ(without_transports("shm", {"posix", "sysv"}), std::nullopt);
}

TEST(SharedMemoryLimits, KnowsWhatUcxTlsAllows) {
  for (const char* tls : {"all", "posix", "sm", "shm,tcp", "mm", "tcp,\\posix", "^sysv"}) {
    EXPECT_TRUE(allows_transport(tls, "posix")) << tls;
  }
  for (const char* tls : {"tcp", "sysv,self", "^posix", "^shm", "nonsense"}) {
    EXPECT_FALSE(allows_transport(tls, "posix")) << tls;
  }
}

TEST(SharedMemoryLimits, MoreRanksThanFitAreAnObstacle) {
  // No machine has a /dev/shm for so many.
  const auto obstacle = posix_obstacle(1 << 30);
  ASSERT_TRUE(obstacle);
  EXPECT_NE(obstacle->find("/dev/shm has "), std::string::npos) << *obstacle;
  EXPECT_NE(obstacle->find("1073741824 ranks"), std::string::npos) << *obstacle;
  EXPECT_NE(obstacle->find("--shm-size=1g"), std::string::npos) << *obstacle;
}

TEST(SharedMemoryLimits, SegmentsFitOrNobodyBegins) {
  EXPECT_TRUE(segments_fit({"posix", "sysv", "tcp"}, 4096, 2));
  EXPECT_FALSE(segments_fit({"self", "tcp"}, 4096, 2));
  EXPECT_FALSE(segments_fit({"posix", "tcp"}, size_t{1} << 40, 1 << 20));
}

TEST(SharedMemoryLimits, CountsTheRanksThatTorchrunStarts) {
  ::unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_EQ(local_ranks(), 1);
  ::setenv("LOCAL_WORLD_SIZE", "8", 1);
  EXPECT_EQ(local_ranks(), 8);
  ::setenv("LOCAL_WORLD_SIZE", "many", 1);
  EXPECT_EQ(local_ranks(), 1);
  ::unsetenv("LOCAL_WORLD_SIZE");
}

}  // namespace
}  // namespace q7x2
