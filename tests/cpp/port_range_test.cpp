// Q7X2_PORT_RANGE: what it may be, and that nothing listens outside of it.
#include "transport/net/port_range.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/owned_fd.h"
#include "transport/peer/heartbeat_listener.h"

namespace q7x2 {
namespace {

class PortRangeTest : public ::testing::Test {
 protected:
  void TearDown() override { ::unsetenv("Q7X2_PORT_RANGE"); }

  static std::optional<PortRange> of(const std::string& text) {
    ::setenv("Q7X2_PORT_RANGE", text.c_str(), 1);
    return PortRange::of_environment();
  }
  /// The first of `count` ports at which nobody listens.
  static uint16_t free_ports(size_t count) {
    for (uint16_t first = 21000; first < 31000; first = static_cast<uint16_t>(first + count)) {
      bool are_free = true;
      for (size_t i = 0; i < count; ++i) {
        const auto port = static_cast<uint16_t>(first + i);
        are_free = are_free && !PortRange{port, port}.is_used_up();
      }
      if (are_free) return first;
    }
    return 0;
  }
};

TEST_F(PortRangeTest, IsTwoPorts) {
  EXPECT_FALSE(of(""));
  for (const auto& [text, first, last] :
       {std::tuple("20000-20099", 20000, 20099), {"7-7", 7, 7}, {"1-65535", 1, 65535}}) {
    const auto range = of(text);
    ASSERT_TRUE(range) << text;
    EXPECT_EQ(range->first, first);
    EXPECT_EQ(range->last, last);
    EXPECT_EQ(range->size(), static_cast<size_t>(last - first + 1));
    EXPECT_EQ(range->text(), text);
    EXPECT_EQ(range->at(range->size()), first);
  }
}

TEST_F(PortRangeTest, RefusesWhatIsNone) {
  for (const char* text : {"20000", "20000-", "-20099", "20099-20000", "0-5", "1-65536", "a-b",
                           "20000 - 20099", "20000-20099,30000", "-", "20000-20099-20100"}) {
    try {
      of(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("Q7X2_PORT_RANGE=" + std::string(text)),
                std::string::npos)
          << error.what();
    }
  }
}

TEST_F(PortRangeTest, HeartbeatsUseEachPortAndThenThereIsNone) {
  constexpr size_t kPorts = 4;
  const uint16_t first = free_ports(kPorts);
  ASSERT_NE(first, 0);
  const PortRange range{first, static_cast<uint16_t>(first + kPorts - 1)};
  ASSERT_TRUE(of(range.text()));
  EXPECT_FALSE(range.is_used_up());
  std::vector<std::unique_ptr<HeartbeatListener>> listeners;
  std::set<uint16_t> ports;
  for (uint64_t process = 0; process < kPorts; ++process) {
    listeners.push_back(std::make_unique<HeartbeatListener>(7, MessageKey{}));
    ports.insert(listeners.back()->port());
    EXPECT_TRUE(range.contains(listeners.back()->port()));
  }
  EXPECT_EQ(ports.size(), kPorts);
  EXPECT_TRUE(range.is_used_up());
  try {
    const HeartbeatListener one_more(7, MessageKey{});
    ADD_FAILURE() << one_more.port();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTransport);
    EXPECT_NE(std::string(error.what()).find("no free port for heartbeats"), std::string::npos)
        << error.what();
  }
  listeners.pop_back();
  EXPECT_TRUE(ports.contains(HeartbeatListener(7, MessageKey{}).port()));
}

TEST_F(PortRangeTest, OneProcessAtATimeLooksForAPort) {
  std::atomic<int> inside{0};
  std::atomic<bool> met{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 3; ++n) {
        const PortTurn turn;
        met = met || inside.fetch_add(1) > 0;
        std::this_thread::yield();
        --inside;
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_FALSE(met);
}

// A connection that its listener's end has closed keeps the port for a minute.
TEST_F(PortRangeTest, AnOldConnectionKeepsNoPort) {
  const uint16_t port = free_ports(1);
  const PortRange range{port, port};
  ASSERT_TRUE(of(range.text()));
  for (int i = 0; i < 3; ++i) {
    HeartbeatListener listener(7, MessageKey{});
    ASSERT_EQ(listener.port(), port);
    const OwnedFd caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(caller, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    listener.look(HeartbeatListener::TimePoint::clock::now());
    ASSERT_EQ(listener.num_waiting(), 1);
    listener.close();
  }
}

}  // namespace
}  // namespace q7x2
