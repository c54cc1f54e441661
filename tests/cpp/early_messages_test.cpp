// Messages that arrived before anybody asked for them, in memory of this process.
#include "transport/ucx/early_messages.h"

#include <netinet/in.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "ranks.h"
#include "transport/net/nics.h"
#include "transport/ucx/ucx.h"

namespace q7x2 {
namespace {

constexpr uint64_t kExact = ~uint64_t{0};

using test::Rank;
using test::run_ranks;

/// A worker that is connected to itself.
class Loop {
 public:
  /// Sends to itself, and returns when the message is there.
  void send(uint64_t tag, const std::vector<uint8_t>& bytes) {
    take();  // what came before
    ASSERT_FALSE(has_more());
    ucp_request_param_t param{};
    void* request = ucp_tag_send_nbx(to_me_.get(), bytes.data(), bytes.size(), tag, &param);
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    const auto is_sent = [&] {
      return request == nullptr || ucp_request_check_status(request) != UCS_INPROGRESS;
    };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!is_sent() || !has_more()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      worker_.progress();
    }
    if (request != nullptr) {
      EXPECT_EQ(ucp_request_check_status(request), UCS_OK);
      ucp_request_free(request);
    }
  }
  void take() { early.take_from(worker_); }
  PendingRequest asking() {
    PendingRequest pending;
    pending.completions = &completions;
    pending.worker = &worker_;
    return pending;
  }
  bool has_more() {
    ucp_tag_recv_info_t info{};
    return ucp_tag_probe_nb(worker_.get(), 0, 0, /*remove=*/0, &info) != nullptr;
  }

  EarlyMessages early;
  Completions completions;

 private:
  /// Else nobody may connect.
  static UcpWorker& open_to_this_host(UcpWorker& worker) {
    HostAddresses hosts;
    hosts.add(kLoopback);
    for (const Nic& nic : usable_nics()) hosts.add(IpAddress::v4(nic.address));
    worker.admit(hosts);
    return worker;
  }

  const UcpContext context_{{}, /*tcp_only=*/true};
  UcpWorker worker_{context_};
  UcpEndpoint to_me_{open_to_this_host(worker_), worker_.address(),
                     [](void*, ucp_ep_h, ucs_status_t) {}, nullptr};
};

std::vector<uint8_t> counted(size_t length, uint8_t first) {
  std::vector<uint8_t> bytes(length);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

TEST(EarlyMessages, AreHandedOverInTheirOrder) {
  run_ranks(1, [](Rank&) {
    Loop loop;
    for (const size_t length : {0, 1, 100, 5000}) {
      loop.send(7, counted(length, 1));
      loop.send(7, counted(length, 2));
      loop.take();
      EXPECT_FALSE(loop.has_more());
      for (const uint8_t first : {1, 2}) {
        PendingRequest pending = loop.asking();
        std::vector<uint8_t> bytes(length);
        ASSERT_TRUE(loop.early.receive(pending, 7, kExact, bytes.data(), length)) << length;
        ASSERT_EQ(loop.completions.take(), &pending) << length;
        EXPECT_EQ(pending.status, UCS_OK);
        EXPECT_EQ(pending.length, length);
        EXPECT_EQ(pending.tag, 7U);
        EXPECT_EQ(bytes, counted(length, first));
      }
      EXPECT_FALSE(loop.early.find(0, 0));
    }
  });
}

TEST(EarlyMessages, OnlyWhatMatchesIsHandedOver) {
  run_ranks(1, [](Rank&) {
    Loop loop;
    loop.send(0x15, counted(10, 1));
    loop.send(0x26, counted(10, 2));
    loop.take();
    PendingRequest pending = loop.asking();
    std::vector<uint8_t> bytes(10);
    EXPECT_FALSE(loop.early.receive(pending, 0x16, kExact, bytes.data(), bytes.size()));
    EXPECT_EQ(loop.completions.take(), nullptr);
    EXPECT_EQ(loop.early.find(0x06, 0x0f), 0x26U);
    ASSERT_TRUE(loop.early.receive(pending, 0x06, 0x0f, bytes.data(), bytes.size()));
    EXPECT_EQ(bytes, counted(10, 2));
    EXPECT_EQ(pending.tag, 0x26U);
    loop.early.drop(0x10, 0xf0);
    EXPECT_FALSE(loop.early.find(0, 0));
  });
}

TEST(EarlyMessages, ALongerMessageThanExpectedIsCutAndSaysSo) {
  run_ranks(1, [](Rank&) {
    Loop loop;
    loop.send(7, counted(100, 1));
    loop.take();
    PendingRequest pending = loop.asking();
    std::vector<uint8_t> bytes(11, 0xff);
    ASSERT_TRUE(loop.early.receive(pending, 7, kExact, bytes.data(), 10));
    ASSERT_EQ(loop.completions.take(), &pending);
    EXPECT_EQ(pending.status, UCS_ERR_MESSAGE_TRUNCATED);
    EXPECT_EQ(pending.length, 100U);
    EXPECT_EQ(bytes[10], 0xff) << "no byte beyond the buffer";
  });
}

}  // namespace
}  // namespace q7x2
