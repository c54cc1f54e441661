// Who may connect to a UCX worker: nobody, and then the hosts that are admitted.
#include "transport/ucx/tcp_gate.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ranks.h"
#include "transport/ucx/ucx.h"

namespace q7x2::test {
namespace {

constexpr uint32_t kHost = 0x7f000000;  // 127.0.0.x

HostAddresses host(uint32_t last) {
  HostAddresses one;
  one.add(IpAddress::v4(kHost + last));
  return one;
}

/// What comes of a call from 127.0.0.`last` to `port`.
std::string outcome_of_call(uint32_t last, uint16_t port) {
  const OwnedFd caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(kHost + last);
  EXPECT_EQ(::bind(caller, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  address.sin_addr.s_addr = htonl(kHost + 1);
  address.sin_port = htons(port);
  ::connect(caller, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  pollfd entry{caller, POLLOUT, 0};
  if (::poll(&entry, 1, 0) == 0) return "dropped";
  return (entry.revents & POLLERR) != 0 ? "refused" : "taken";
}

uint16_t port_of(int socket) {
  sockaddr_in own{};
  socklen_t size = sizeof(own);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size), 0);
  return ntohs(own.sin_port);
}

/// A process with a worker that could listen on the loopback.
void run_worker(const std::function<void(UcpWorker&, const std::set<int>&)>& body) {
  run_ranks(1, [&](Rank&) {
    const std::set<int> before = listening_sockets();
    const UcpContext context({"lo"}, /*tcp_only=*/true);
    UcpWorker worker(context);
    body(worker, before);
  });
}

std::vector<uint16_t> new_ports(const std::set<int>& before) {
  std::vector<uint16_t> ports;
  for (const int socket : listening_sockets()) {
    if (!before.contains(socket)) ports.push_back(port_of(socket));
  }
  return ports;
}

TEST(TcpGate, NothingListensBeforeSomebodyIsAdmitted) {
  run_worker([](UcpWorker& worker, const std::set<int>& before) {
    EXPECT_TRUE(new_ports(before).empty());
    worker.admit(host(2));
    const std::vector<uint16_t> ports = new_ports(before);
    ASSERT_EQ(ports.size(), 1U);
    EXPECT_EQ(outcome_of_call(2, ports.front()), "taken");
    EXPECT_EQ(outcome_of_call(3, ports.front()), "dropped");
    HostAddresses both = host(2);
    both.add(host(3));
    worker.admit(both);
    EXPECT_EQ(new_ports(before), ports);
    EXPECT_EQ(outcome_of_call(3, ports.front()), "taken");
    EXPECT_EQ(outcome_of_call(4, ports.front()), "dropped");
  });
}

// The address of the worker is out by then.
TEST(TcpGate, ThePortStaysTheSame) {
  run_worker([](UcpWorker& worker, const std::set<int>& before) {
    // A program that takes all it can get does not get the port.
    std::vector<OwnedFd> others;
    for (int i = 0; i < 100; ++i) {
      others.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      ASSERT_EQ(::bind(others.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    }
    worker.admit(host(1));
    const std::vector<uint16_t> ports = new_ports(before);
    ASSERT_EQ(ports.size(), 1U);
    const std::string port{static_cast<char>(ports.front() >> 8),
                           static_cast<char>(ports.front() & 255)};
    EXPECT_NE(worker.address().find(port), std::string::npos);
  });
}

TEST(TcpGate, ListenersOfOthersAreLeftAlone) {
  run_ranks(1, [](Rank&) {
    const OwnedFd theirs(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::bind(theirs, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(theirs, 8), 0);
    const UcpContext context({"lo"}, /*tcp_only=*/true);
    UcpWorker worker(context);
    EXPECT_EQ(outcome_of_call(5, port_of(theirs)), "taken");
    worker.admit(host(2));
    EXPECT_EQ(outcome_of_call(5, port_of(theirs)), "taken");
  });
}

// UCX would give up its listener for good: it could not accept.
TEST(TcpGate, AListenerOutlivesATimeWithoutFiles) {
  run_worker([](UcpWorker& worker, const std::set<int>& before) {
    worker.admit(host(2));
    const std::vector<uint16_t> ports = new_ports(before);
    ASSERT_EQ(ports.size(), 1U);
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 256;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    {
      std::vector<OwnedFd> files;
      while (files.size() < 256) {
        OwnedFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (file < 0) break;
        files.push_back(std::move(file));
        worker.heed_files();
      }
      ASSERT_LT(files.size(), 256U);
      files.resize(files.size() - 3);  // for the caller
      EXPECT_EQ(outcome_of_call(2, ports.front()), "taken");
      worker.heed_files();
    }
    worker.heed_files();
    EXPECT_EQ(new_ports(before), ports);
    EXPECT_EQ(outcome_of_call(2, ports.front()), "taken");
    worker.progress();
  });
}

}  // namespace
}  // namespace q7x2::test
