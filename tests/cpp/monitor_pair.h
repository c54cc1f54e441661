// Two liveness monitors of one process that watch each other over the loopback.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "deaf_port.h"
#include "transport/peer/liveness_monitor.h"

namespace q7x2::test {

constexpr uint64_t kMe = 11;
constexpr uint64_t kPeer = 22;
constexpr MessageKey kKey{std::byte{1}};  // all processes'

inline HeartbeatTarget target_of(const LivenessMonitor& monitor, uint64_t process) {
  return {.process = process, .endpoint = {kLoopback, monitor.port()}, .key = kKey};
}

inline HeartbeatTarget deaf_target(const DeafPort& deaf) {
  return {.process = kPeer, .endpoint = {kLoopback, deaf.port()}};
}

inline bool eventually(const std::function<bool()>& condition) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// This process watches a peer, and the peer answers.
struct MonitorPair {
  std::unique_ptr<LivenessMonitor> me = std::make_unique<LivenessMonitor>(kMe, kKey);
  std::unique_ptr<LivenessMonitor> peer = std::make_unique<LivenessMonitor>(kPeer, kKey);
  std::vector<Finding> findings;
  char who = 0;

  MonitorPair() {
    me->expect(kPeer);
    peer->expect(kMe);
    me->watch_host(target_of(*peer, kPeer), &who, std::chrono::steady_clock::now());
    peer->watch_host(target_of(*me, kMe), this, std::chrono::steady_clock::now());
  }

  const Heartbeat& heartbeat() const { return *me->heartbeat(&who); }
  void look() {
    for (auto& finding : me->poll(std::chrono::steady_clock::now()))
      findings.push_back(std::move(finding));
    if (peer) {
      EXPECT_TRUE(peer->poll(std::chrono::steady_clock::now()).empty());
    }
  }
  void look_for(std::chrono::milliseconds duration) {
    const auto end = std::chrono::steady_clock::now() + duration;
    while (std::chrono::steady_clock::now() < end) {
      look();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
};

}  // namespace q7x2::test
