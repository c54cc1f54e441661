// Events come out as from a sorted list, whatever their streams.
#include "plan/cost/event_queue.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

TEST(EventQueue, ReturnsTheEarliestByTimeThenTurnThenOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const size_t streams = 1 + random() % 5;
    // Times on a coarse grid are often equal. Some go back within their stream.
    const double grid = 1 + random() % 3;
    EventQueue<int> queue(streams);
    std::vector<std::tuple<double, uint64_t, int>> waiting;
    double now = 0;
    int pushed = 0;
    for (int step = 0; step < 300; ++step) {
      if (random() % 2 == 0) {
        const double time = now + static_cast<double>(random() % 8) / grid;
        const uint64_t turn = random() % 3;
        queue.push(random() % streams, time, turn, pushed);
        waiting.emplace_back(time, turn, pushed++);
      } else if (!queue.empty()) {
        const auto first = std::ranges::min_element(waiting);
        const auto event = queue.pop();
        ASSERT_EQ(std::tuple(event.time, event.turn, event.what), *first);
        now = event.time;
        waiting.erase(first);
      }
      ASSERT_EQ(queue.empty(), waiting.empty());
    }
  }
}

TEST(Fifo, KeepsItsOrderWhileItGrows) {
  Fifo<int> fifo;
  int first = 0;
  int next = 0;
  std::mt19937 random(3);
  for (int step = 0; step < 10'000; ++step) {
    if (random() % 5 < 3) {
      fifo.push_back(next++);
      ASSERT_EQ(fifo.back(), next - 1);
    } else if (!fifo.empty()) {
      ASSERT_EQ(fifo.front(), first++);
      fifo.pop_front();
    }
    ASSERT_EQ(fifo.size(), static_cast<size_t>(next - first));
  }
}

}  // namespace
}  // namespace q7x2
