// The order of a hook's collectives: the same on all ranks, whatever completes first.
#include "comm_hooks/run/lanes.h"

#include <atomic>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm_hooks/run/phases.h"
#include "comm_hooks/run/worker.h"

namespace q7x2 {
namespace {

using Starts = std::vector<std::vector<Lanes::Ticket>>;  // by lane

/// Buckets of up to three phases that become ready in a random order; returns the order of starts.
Starts run_rank(unsigned seed, size_t buckets, size_t lanes_count) {
  std::mt19937 random(seed);
  Lanes lanes(lanes_count);
  Starts starts(lanes_count);
  std::map<Lanes::Ticket, size_t> ready;  // ticket, the lane it starts in next
  // The same on all ranks: bucket b has b % (lanes + 1) collectives.
  const auto phases = [&](Lanes::Ticket ticket) { return ticket % (lanes_count + 1); };
  size_t entered = 0;
  while (entered < buckets || !ready.empty()) {
    if (entered < buckets && (ready.empty() || random() % 2 == 0)) {
      const Lanes::Ticket ticket = lanes.enter();
      ++entered;
      if (phases(ticket) == 0) {
        lanes.leave(ticket, 0);
      } else {
        ready[ticket] = 0;
      }
      continue;
    }
    auto chosen = ready.begin();
    std::advance(chosen, static_cast<long>(random() % ready.size()));
    const auto [ticket, lane] = *chosen;
    ready.erase(chosen);
    lanes.start(ticket, lane, [&, ticket = ticket, lane = lane] {
      starts[lane].push_back(ticket);
      if (lane + 1 < phases(ticket)) {
        ready[ticket] = lane + 1;  // complete at once; what comes of it waits for its choice
      } else {
        lanes.leave(ticket, lane + 1);
      }
    });
  }
  return starts;
}

TEST(Lanes, StartInOneOrderOnAllRanks) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Starts one = run_rank(2 * seed, 20, 3);
    EXPECT_EQ(one, run_rank(2 * seed + 1, 20, 3));
    for (size_t lane = 0; lane < one.size(); ++lane) {
      Starts::value_type expected;
      for (Lanes::Ticket ticket = 0; ticket < 20; ++ticket) {
        if (ticket % 4 > lane) expected.push_back(ticket);
      }
      EXPECT_EQ(one[lane], expected);
    }
  }
}

TEST(Lanes, LaterBucketsOvertakeInAnotherLane) {
  Lanes lanes(2);
  std::vector<int> order;
  const auto a = lanes.enter();
  const auto b = lanes.enter();
  lanes.start(a, 0, [&] { order.push_back(0); });
  lanes.start(b, 0, [&] { order.push_back(10); });
  lanes.start(b, 1, [&] { order.push_back(11); });
  EXPECT_EQ(order, (std::vector<int>{0, 10}));
  lanes.start(a, 1, [&] { order.push_back(1); });
  EXPECT_EQ(order, (std::vector<int>{0, 10, 1, 11}));
}

TEST(Lanes, ATicketUsesALaneOnce) {
  Lanes lanes(1);
  const auto ticket = lanes.enter();
  lanes.start(ticket, 0, [] {});
  EXPECT_THROW(lanes.start(ticket, 0, [] {}), Error);
  EXPECT_THROW(lanes.start(ticket, 1, [] {}), Error);
  lanes.leave(ticket, 0);
}

TEST(Worker, UrgentFirstAndEachInOrder) {
  Worker worker([] {});
  std::atomic<bool> open{false};
  std::vector<int> order;
  worker.post(Worker::Urgency::kNow, [&] {
    while (!open) std::this_thread::yield();
  });
  for (int i = 0; i < 3; ++i) {
    worker.post(Worker::Urgency::kLater, [&order, i] { order.push_back(10 + i); });
    worker.post(Worker::Urgency::kNow, [&order, i] { order.push_back(i); });
  }
  open = true;
  worker.run([] {});
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 10, 11, 12}));
}

TEST(Worker, RunThrowsWhatTheTaskThrows) {
  Worker worker([] {});
  EXPECT_THROW(worker.run([] { throw std::out_of_range("no"); }), std::out_of_range);
  worker.stop();
  EXPECT_THROW(worker.run([] {}), Error);
}

/// Awaits nothing but the next `resume`.
struct Pause {
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<>) {}
  void await_resume() {}
};

Phases count_to_two(int& count, bool fails) {
  count = 1;
  co_await Pause{};
  if (fails) throw std::runtime_error("failed");
  count = 2;
}

TEST(Phases, PauseAndEnd) {
  int count = 0;
  Phases phases = count_to_two(count, false);
  EXPECT_EQ(count, 0);
  phases.resume();
  EXPECT_EQ(count, 1);
  EXPECT_FALSE(phases.done());
  phases.resume();
  EXPECT_EQ(count, 2);
  EXPECT_TRUE(phases.done());
}

TEST(Phases, ResumeThrowsWhatTheBodyThrows) {
  int count = 0;
  Phases phases = count_to_two(count, true);
  phases.resume();
  EXPECT_THROW(phases.resume(), std::runtime_error);
  EXPECT_TRUE(phases.done());
}

}  // namespace
}  // namespace q7x2
