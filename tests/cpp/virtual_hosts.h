// Ranks in separate network namespaces, joined by a bridge.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/owned_fd.h"
#include "comm.h"
#include "ranks.h"
#include "transport/net/nics.h"

namespace q7x2::test {

inline constexpr int kRanks = 3;
inline constexpr int kVictim = 2;

inline bool succeeds(const std::string& command) {
  return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
}

/// Expects that the error names the victim.
inline void expect_named(const Error& error, ErrorCode code, const std::string& why) {
  EXPECT_EQ(to_string(error.code()), std::string(to_string(code))) << error.what();
  EXPECT_EQ(error.rank(), kVictim) << error.what();
  EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
}

/// A switch and one host per rank. The test is skipped if the machine cannot make them.
class VirtualHosts : public ::testing::Test {
 protected:
  /// `is_v6`: the hosts have only IPv6 addresses.
  explicit VirtualHosts(bool is_v6 = false) : is_v6_(is_v6) {}

  void SetUp() override {
    if (::geteuid() != 0 || !succeeds("ip -V")) {
      GTEST_SKIP() << "network namespaces need root and iproute2";
    }
    // With a changed root directory iproute2 makes a namespace that it cannot enter.
    if (!succeeds("ip netns add " + switch_) || !succeeds(on_switch("link set lo up"))) {
      GTEST_SKIP() << "this machine makes no network namespaces";
    }
    bool is_up = succeeds(on_switch("link add bridge type bridge")) &&
                 succeeds(on_switch("link set bridge up"));
    for (int r = 0; r < kRanks; ++r) {
      const std::string port = "port" + std::to_string(r);
      is_up = is_up && succeeds("ip netns add " + host(r)) &&
              succeeds("ip link add eth0 netns " + host(r) + " type veth peer name " + port +
                       " netns " + switch_) &&
              succeeds(on_switch("link set " + port + " master bridge up")) &&
              succeeds("ip -n " + host(r) + " link set eth0 up") &&
              succeeds("ip -n " + host(r) + " address add " + address(r) +
                       (is_v6_ ? "/64 dev eth0 nodad" : "/24 dev eth0")) &&
              succeeds("ip -n " + host(r) + " link set lo up");
    }
    ASSERT_TRUE(is_up);
  }
  void TearDown() override {
    for (int r = 0; r < kRanks; ++r) succeeds("ip netns delete " + host(r));
    succeeds("ip netns delete " + switch_);
  }

  std::string address(int rank) const {
    return (is_v6_ ? "fd79::" : "10.79.0.") + std::to_string(rank + 1);
  }
  std::string host(int rank) const { return switch_ + "-h" + std::to_string(rank); }
  std::string on_switch(const std::string& command) const {
    return "ip -n " + switch_ + " " + command;
  }
  void cut() const {
    ASSERT_TRUE(succeeds(on_switch("link set port" + std::to_string(kVictim) + " down")));
  }
  void mend() const {
    ASSERT_TRUE(succeeds(on_switch("link set port" + std::to_string(kVictim) + " up")));
  }

  /// Why the switch cannot drop packets; empty: it can.
  std::string cannot_drop() const {
    const bool can = succeeds("ip netns exec " + switch_ + " nft add table bridge probe");
    return can ? "" : "nft (apt-get install nftables; the kernel must know bridges) drops packets";
  }
  /// The switch drops the packets that it forwards for which `rule` holds.
  void drop(const std::string& rule) const {
    ASSERT_TRUE(succeeds("ip netns exec " + switch_ +
                         " nft 'add table bridge wall; add chain bridge wall packets { type filter "
                         "hook forward priority 0; }; add rule bridge wall packets " +
                         rule + " drop'"))
        << rule;
  }

  /// Runs `body` on each rank, on its host, when all are connected; if not `connects`, when they
  /// have only met.
  void run(const char* silence, const std::function<void(Rank&, Comm&)>& body,
           const RunOptions& options = {}, bool connects = true) const {
    run_ranks(
        kRanks,
        [&](Rank& rank) {
          const OwnedFd space(::open(("/run/netns/" + host(rank.rank)).c_str(), O_RDONLY));
          ASSERT_EQ(::setns(space, CLONE_NEWNET), 0);
          ::setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
          ::setenv("Q7X2_SILENCE", silence, 1);
          ::setenv("MASTER_ADDR", address(0).c_str(), 1);
          ::setenv("UCX_TLS", "tcp", 1);
          Comm comm(rank.group("world", {}, connects));
          for (int i = 0; i < 3 && connects; ++i) reduce(comm);
          rank.barrier();
          // heartbeats have begun by then
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          body(rank, comm);
        },
        options);
  }

  /// Runs `body` in a process on the victim's host, after its cable was cut.
  void on_host_without_link(const std::function<void()>& body) const {
    cut();
    run_ranks(1, [&](Rank&) {
      const OwnedFd space(::open(("/run/netns/" + host(kVictim)).c_str(), O_RDONLY));
      ASSERT_EQ(::setns(space, CLONE_NEWNET), 0);
      ::setenv("MASTER_ADDR", "10.79.0.1", 1);
      // The kernel reports a lost carrier a moment later.
      const TimePoint give_up = Clock::now() + kPatience;
      while (!usable_nics().empty() && Clock::now() < give_up) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      EXPECT_TRUE(usable_nics().empty());
      body();
    });
  }

  static void reduce(Comm& comm) {
    const auto data = buffer<int32_t>(10'000, comm.rank() + 1);
    comm.succeed(*comm.all_reduce(data));
    EXPECT_EQ(std::count(data->begin(), data->end(), kRanks * (kRanks + 1) / 2), 10'000);
  }

  const bool is_v6_;
  const std::string switch_ = "q7x2cpp-" + std::to_string(::getpid());
};

}  // namespace q7x2::test
