#include "transport/group/membership.h"

#include <gtest/gtest.h>

#include "transport/peer/peer_table.h"

namespace q7x2 {
namespace {

// Rank 1 of four. Ranks 1 and 3 are on host b, which shares a network beside with host c.
class MembershipTest : public ::testing::Test {
 protected:
  static Nic nic(const std::string& name, uint32_t address) {
    Nic nic;
    nic.name = name;
    nic.address = address;
    nic.prefix = 24;
    return nic;
  }

  static PeerInfo peer_info(const std::string& host, int pid, std::vector<Nic> rails = {}) {
    PeerInfo peer_info;
    peer_info.host_key = host;
    peer_info.hostname = "host-" + host;
    peer_info.pid = pid;
    peer_info.rails = std::move(rails);
    return peer_info;
  }

  Membership make(std::vector<PeerInfo> peer_infos) {
    std::vector<Peer*> peers;
    for (size_t r = 0; r < peer_infos.size(); ++r) {
      peers.push_back(r == 1 ? nullptr : &peers_[r]);
    }
    return {"g", 1, std::move(peer_infos), std::move(peers)};
  }

  Peer peers_[4];
};

TEST_F(MembershipTest, KnowsItsHost) {
  const Membership members =
      make({peer_info("a", 10), peer_info("b", 11), peer_info("c", 12), peer_info("b", 13)});
  EXPECT_EQ(members.world_size(), 4);
  EXPECT_EQ(members.host_ranks(), (std::vector{1, 3}));
  EXPECT_TRUE(members.same_host(1));
  EXPECT_TRUE(members.same_host(3));
  EXPECT_FALSE(members.same_host(0));
  EXPECT_EQ(members.describe(3), "rank 3 (pid 13 on host-b)");
}

TEST_F(MembershipTest, KnowsItsPeers) {
  const Membership members =
      make({peer_info("a", 10), peer_info("b", 11), peer_info("c", 12), peer_info("b", 13)});
  EXPECT_EQ(&members.peer(2), &peers_[2]);
  EXPECT_EQ(members.rank_of(peers_[3]), 3);
  EXPECT_EQ(members.rank_of(peers_[1]), -1) << "it is no member";
}

TEST_F(MembershipTest, HostsOnTheSameNetworkBesideHaveAPrivateOne) {
  const Nic elsewhere = nic("eth1", 0x0a010001);
  const Nic of_b = nic("eth2", 0x0a020001);
  const Nic of_c = nic("eth1", 0x0a020002);
  const Membership members =
      make({peer_info("a", 10), peer_info("b", 11, {elsewhere, of_b}), peer_info("c", 12, {of_c}),
            peer_info("b", 13, {elsewhere, of_b})});
  EXPECT_TRUE(members.has_private_networks());
  EXPECT_EQ(members.private_network(1, 2), std::make_pair(size_t{1}, size_t{0}));
  EXPECT_EQ(members.private_network(2, 1), std::make_pair(size_t{0}, size_t{1}));
  EXPECT_FALSE(members.private_network(1, 3)) << "they share memory";
  EXPECT_FALSE(members.private_network(0, 2));
}

TEST_F(MembershipTest, WithoutInterfacesBesideThereIsNoPrivateNetwork) {
  EXPECT_FALSE(make({peer_info("a", 10), peer_info("b", 11)}).has_private_networks());
}

}  // namespace
}  // namespace q7x2
