#include "base/concurrent_recent.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using Map = ConcurrentRecent<int, std::string>;

std::shared_ptr<std::string> text(int number) {
  return std::make_shared<std::string>(std::to_string(number));
}

TEST(ConcurrentRecent, ForgetsWhatIsNotLookedUp) {
  Map map(3);
  EXPECT_EQ(map.find(1), nullptr);
  for (const int key : {3, 1, 2}) map.add(key, text(key));
  EXPECT_EQ(*map.find(3), "3");
  map.add(4, text(4));
  EXPECT_EQ(map.find(1), nullptr) << "the oldest that was not looked up";
  EXPECT_EQ(*map.find(3), "3");
  EXPECT_EQ(*map.find(4), "4");
  map.add(5, text(5));
  EXPECT_EQ(map.find(2), nullptr);
  map.add(6, text(6));
  EXPECT_EQ(map.values().size(), 3U);
  map.clear();
  EXPECT_EQ(map.find(3), nullptr);
  EXPECT_TRUE(map.values().empty());
}

TEST(ConcurrentRecent, ThreadsReadWhileItChanges) {
  Map map(8);
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      for (int key = 0; !stop; key = (key + 1) % 32) {
        const auto found = map.find(key);
        if (found) {
          EXPECT_EQ(*found, std::to_string(key));
        }
      }
    });
  }
  for (int turn = 0; turn < 20'000; ++turn) {
    const int key = turn * 7 % 32;
    if (!map.find(key)) map.add(key, text(key));
    if (turn % 1000 == 0) map.clear();
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace q7x2
