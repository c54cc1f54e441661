// Quorums of ranks in threads, of which one stops or loses messages at a chosen point of a step.
#include "late/quorum.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using Kind = Quorum::Header::Kind;

/// Messages between threads, each of which is a rank.
class Network {
 public:
  explicit Network(int size) : arrived_(static_cast<size_t>(size)), flags_(0) {}

  int size() const { return static_cast<int>(arrived_.size()); }

  void deliver(int to, PeerMessage message) {
    const std::lock_guard lock(mutex_);
    arrived_[static_cast<size_t>(to)].push_back(std::move(message));
    changed_.notify_all();
  }

  std::optional<PeerMessage> take(int rank, double seconds) {
    std::unique_lock lock(mutex_);
    auto& mine = arrived_[static_cast<size_t>(rank)];
    if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return !mine.empty(); })) {
      return std::nullopt;
    }
    PeerMessage message = std::move(mine.front());
    mine.pop_front();
    return message;
  }

  /// Flags are bits, by which the threads of a test wait for each other.
  void raise(int flag) {
    const std::lock_guard lock(mutex_);
    flags_ |= 1U << flag;
    changed_.notify_all();
  }

  void wait_for(int flag) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60),
                                  [&] { return (flags_ >> flag & 1) != 0; }))
        << "nobody has raised flag " << flag;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<PeerMessage>> arrived_;
  uint32_t flags_;
};

/// A rank's end of the network.
class Port final : public Messenger {
 public:
  Port(Network& network, int rank) : network_(network), rank_(rank) {
    for (int each = 0; each < network.size(); ++each) {
      if (each != rank) peers_.push_back(each);
    }
  }

  int rank() const override { return rank_; }
  int world_size() const override { return network_.size(); }
  const std::vector<int>& peers() const override { return peers_; }

  void send(int peer, std::span<const int64_t> header, const Bytes& payload) override {
    const auto [kind, step] = std::pair(header[0], header[1]);
    if (lost_to.contains(peer) && kind == Kind::kContribution && step == lost_in) return;
    network_.deliver(
        peer, {.sender = rank_, .header = {header.begin(), header.end()}, .payload = payload});
    if (stops && *stops == std::pair(kind, step)) {
      stops.reset();
      network_.wait_for(kGoOn);
    }
  }

  bool is_loading(int) const override { return false; }
  std::optional<PeerMessage> receive_within(double seconds) override {
    return network_.take(rank_, seconds);
  }
  void finish_sends() override {}

  static constexpr int kGoOn = 0;
  /// After its first message of that kind and step this rank stands still until kGoOn is raised.
  std::optional<std::pair<int64_t, int64_t>> stops;
  /// These peers do not get what this rank contributes to the step.
  std::set<int> lost_to;
  int64_t lost_in = -1;

 private:
  Network& network_;
  const int rank_;
  std::vector<int> peers_;
};

Bytes bytes_of(int64_t value) {
  const Bytes made = Bytes::make(sizeof(value));
  std::memcpy(made.data.get(), &value, sizeof(value));
  return made;
}

int64_t value_of(const Bytes& bytes) {
  int64_t value = 0;
  std::memcpy(&value, bytes.data.get(), sizeof(value));
  return value;
}

/// A training whose weights are one number, in which every contribution of every step leaves a
/// trace.
class Training {
 public:
  Training(Network& network, int rank)
      : port(std::make_shared<Port>(network, rank)),
        quorum_(port, {.least_bytes = sizeof(int64_t),
                       .most_bytes = sizeof(int64_t),
                       .is_enough = [this](int64_t mask) { return counted(mask) >= need; },
                       .state = [this] { return bytes_of(weights_); }}) {
    // A leader that is only slow must not lose its place.
    quorum_.set_timing({.grace = 0.05, .takeover = 0.3, .timeout = 60});
  }

  void train(int64_t steps) {
    while (quorum_.step() < steps) {
      const int64_t mine = 1000 * quorum_.step() + port->rank();
      const Quorum::Closed closed = quorum_.close({.data = bytes_of(mine), .weight = 1});
      skipped += closed.state ? 1 : 0;
      if (closed.state) weights_ = value_of(*closed.state);
      for (const auto& [rank, each] : closed.contributions) {
        weights_ = 31 * weights_ + value_of(each.data);
        weights_ %= 1'000'000'007;
      }
      if (!closed.state) quorum_.serve();
    }
  }

  int64_t finish() {
    quorum_.finish();
    return weights_;
  }

  const std::shared_ptr<Port> port;
  int need = 3;
  int skipped = 0;  // states of others that it has taken

 private:
  static int counted(int64_t mask) { return std::popcount(static_cast<uint64_t>(mask)); }

  Quorum quorum_;
  int64_t weights_ = 0;
};

/// Runs the body on each rank; all end with the same weights.
void run(int size, const std::function<void(Network&, Training&, int rank)>& body) {
  Network network(size);
  std::vector<int64_t> weights(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Training training(network, rank);
      body(network, training, rank);
      weights[static_cast<size_t>(rank)] = training.finish();
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(std::set(weights.begin(), weights.end()).size(), 1U);
  EXPECT_NE(weights.front(), 0);
}

struct Stop {
  const char* name;
  int64_t kind;
  int rank;
};

class QuorumStops : public testing::TestWithParam<Stop> {};

// The others take five steps, and only then does it go on.
TEST_P(QuorumStops, NoStepWaitsForTheRank) {
  const Stop stop = GetParam();
  run(4, [&](Network& network, Training& training, int rank) {
    if (rank == stop.rank) training.port->stops = {stop.kind, 3};
    training.train(8);
    if (rank == (stop.rank + 1) % 4) network.raise(Port::kGoOn);
    EXPECT_FALSE(training.port->stops) << "it has sent no such message";
    training.train(12);
  });
}

constexpr auto kPropose = static_cast<int64_t>(Ballot::Kind::kPropose);
constexpr auto kAccept = static_cast<int64_t>(Ballot::Kind::kAccept);

INSTANTIATE_TEST_SUITE_P(At, QuorumStops,
                         testing::Values(Stop{"AskOfTheLeader", Kind::kAsk, 0},
                                         Stop{"Ask", Kind::kAsk, 3},
                                         Stop{"ContributionOfTheLeader", Kind::kContribution, 0},
                                         Stop{"Contribution", Kind::kContribution, 3},
                                         Stop{"ProposeOfTheLeader", kPropose, 0},
                                         Stop{"AcceptOfTheLeader", kAccept, 0},
                                         Stop{"Accept", kAccept, 3}),
                         [](const auto& each) { return std::string(each.param.name); });

// Rank 0 stops when it has proposed its own gradient, which only rank 1 has.
TEST(Quorum, WhatOneRankHasOfAStoppedOneIsPassedOn) {
  run(4, [](Network& network, Training& training, int rank) {
    if (rank == 0) {
      training.port->lost_to = {2, 3};
      training.port->lost_in = 3;
      training.port->stops = {kPropose, 3};
    }
    training.train(4);
    if (rank == 2 || rank == 3) network.raise(rank);
    if (rank == 1) {
      network.wait_for(2);
      network.wait_for(3);
      network.raise(Port::kGoOn);
    }
    training.train(6);
  });
}

// Rank 2 does not get what rank 0 sent before it stopped, and step 1 needs rank 2.
TEST(Quorum, ARankThatLacksAContributionOfAStoppedRankGetsTheStateOfAnother) {
  constexpr int kHaveClosed = 1;
  run(3, [](Network& network, Training& training, int rank) {
    training.need = 2;
    if (rank == 2) {
      network.wait_for(kHaveClosed);
    } else {
      if (rank == 0) {
        training.port->lost_to = {2};
        training.port->lost_in = 0;
      }
      training.train(1);
    }
    if (rank == 0) {
      network.raise(kHaveClosed);
      network.wait_for(Port::kGoOn);
    }
    training.train(4);
    if (rank == 1) network.raise(Port::kGoOn);
    if (rank == 2) {
      EXPECT_GE(training.skipped, 1);
    }
    training.train(6);
  });
}

}  // namespace
}  // namespace q7x2
