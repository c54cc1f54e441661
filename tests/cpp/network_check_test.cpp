// Groups in which a rank has no network, though it needs one.
#include "transport/bootstrap/network_check.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ranks.h"

namespace q7x2 {
namespace {

PeerInfo card_on(const std::string& host, const std::string& transports) {
  PeerInfo peer_info;
  peer_info.pid = 41;
  peer_info.host_key = host;
  peer_info.hostname = host;
  peer_info.transports = transports;
  return peer_info;
}

TEST(NetworkCheck, KnowsWhatLeadsToOtherHosts) {
  for (const char* local :
       {"", "self", "posix, sysv, self", "cma, knem, xpmem, cuda_copy, cuda_ipc"}) {
    EXPECT_FALSE(has_network(local)) << local;
  }
  for (const char* network : {"tcp", "self, tcp", "posix, rc_verbs", "ud_mlx5,self"}) {
    EXPECT_TRUE(has_network(network)) << network;
  }
}

TEST(NetworkCheck, RanksThatShareMemoryNeedNone) {
  const std::vector<PeerInfo> one_host(3, card_on("a", "posix, self"));
  EXPECT_NO_THROW(refuse_without_network(one_host, 0, "world"));
  const std::vector<PeerInfo> two_hosts{card_on("a", "posix, tcp"), card_on("b", "sysv, tcp")};
  EXPECT_NO_THROW(refuse_without_network(two_hosts, 1, "world"));
  EXPECT_NO_THROW(refuse_without_network({card_on("a", "self")}, 0, "world"));
}

TEST(NetworkCheck, AllRanksNameTheOneThatLacksIt) {
  // It asks UCX which interfaces there are.
  test::run_ranks(1, [](test::Rank&) {
    ::setenv("UCX_NET_DEVICES", "nothing0", 1);
    const std::vector<PeerInfo> peer_infos{card_on("a", "posix, tcp"), card_on("b", "posix, self"),
                                           card_on("b", "posix, self, tcp")};
    for (int rank = 0; rank < 3; ++rank) {
      try {
        refuse_without_network(peer_infos, rank, "world");
        ADD_FAILURE();
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(error.code(), ErrorCode::kTransport);
        EXPECT_EQ(error.rank(), 1);
        EXPECT_NE(text.find("rank 1 (pid 41 on b) has no network"), std::string::npos) << text;
        EXPECT_NE(text.find("UCX_NET_DEVICES"), std::string::npos) << text;
        EXPECT_EQ(text.find("UCX_NET_DEVICES=nothing0") != std::string::npos, rank == 1) << text;
        EXPECT_EQ(text.find("/dev/shm"), std::string::npos) << text;
      }
    }
  });
}

TEST(NetworkCheck, NatNeedsManyConnections) {
  std::vector<PeerInfo> ranks{card_on("a", "tcp"), card_on("a", "tcp"), card_on("b", "tcp")};
  for (PeerInfo& each : ranks) each.stream_port = 5;
  ranks[2].behind_nat = true;
  EXPECT_NO_THROW(refuse_nat_without_streams(ranks, "world"));
  ranks[1].stream_port = 0;
  try {
    refuse_nat_without_streams(ranks, "world");
    FAIL() << "a rank without a lane is behind NAT for another";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 2 of group 'world' is behind NAT"), std::string::npos) << text;
    EXPECT_NE(text.find("Q7X2_STREAMS is 0 on rank 1"), std::string::npos) << text;
  }
  ranks[2].behind_nat = false;
  EXPECT_NO_THROW(refuse_nat_without_streams(ranks, "world"));
}

}  // namespace
}  // namespace q7x2
