#include "fabric/host.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

class HostKey : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("Q7X2_HOST_ID"); }
  void TearDown() override { unsetenv("Q7X2_HOST_ID"); }
};

TEST_F(HostKey, IsStableWithinAProcess) {
  EXPECT_EQ(host_key(), host_key());
}

TEST_F(HostKey, TheTestMappingOnlyPartsHosts) {
  const std::string own = host_key();
  setenv("Q7X2_HOST_ID", "a", 1);
  const std::string a = host_key();
  setenv("Q7X2_HOST_ID", "b", 1);
  const std::string b = host_key();
  EXPECT_NE(a, own);
  EXPECT_NE(a, b);
  // What makes two real hosts differ is still in front of the mapped name.
  EXPECT_EQ(a.rfind(own, 0), 0U);
  EXPECT_EQ(b.rfind(own, 0), 0U);
}

TEST_F(HostKey, AnEmptyMappingIsNone) {
  const std::string own = host_key();
  setenv("Q7X2_HOST_ID", "", 1);
  EXPECT_EQ(host_key(), own);
}

// The key of a child that has left the IPC namespace, or "" where the kernel does not allow that.
std::string key_in_new_ipc_namespace() {
  int channel[2];
  if (pipe(channel) != 0) return "";
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWIPC) == 0) {
      const std::string key = host_key();
      if (write(channel[1], key.data(), key.size()) < 0) _exit(1);
    }
    _exit(0);
  }
  close(channel[1]);
  char buffer[512];
  const ssize_t length = read(channel[0], buffer, sizeof(buffer));
  close(channel[0]);
  waitpid(child, nullptr, 0);
  return length > 0 ? std::string(buffer, static_cast<size_t>(length)) : "";
}

TEST_F(HostKey, AnotherIpcNamespaceIsAnotherHost) {
  const std::string other = key_in_new_ipc_namespace();
  if (other.empty()) GTEST_SKIP() << "needs the right to unshare an IPC namespace";
  EXPECT_NE(other, host_key());
}

TEST(HostInfo, CountsWhatThisMachineHas) {
  const HostInfo info = host_info();
  EXPECT_FALSE(info.hostname.empty());
  EXPECT_EQ(info.boot_id.size(), 36U);
  EXPECT_GE(info.packages, 1);
  EXPECT_GE(info.numa_nodes, 1);
  EXPECT_GE(info.cores, 1);
  EXPECT_GE(info.hardware_threads, info.cores);
  EXPECT_GE(info.usable_cpus, 1);
  EXPECT_GT(info.memory_bytes, uint64_t{1} << 20);
}

TEST(HostInfo, FindsTheLoopbackInterface) {
  const HostInfo info = host_info();
  const auto loopback =
      std::find_if(info.network_interfaces.begin(), info.network_interfaces.end(),
                   [](const NetworkInterface& interface) { return interface.loopback; });
  ASSERT_NE(loopback, info.network_interfaces.end());
  EXPECT_EQ(loopback->numa_node, -1);
}

TEST(UsableCpus, FollowsTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(usable_cpus(), 1);
  const std::string pinned = machine_key();
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(usable_cpus(), CPU_COUNT(&before));
  EXPECT_EQ(machine_key() == pinned, CPU_COUNT(&before) == 1);
  EXPECT_EQ(machine_key(), machine_key());
}

TEST(CpuList, IsWrittenAndReadAsTheKernelDoes) {
  using Cpus = std::vector<int>;
  for (const auto& [cpus, text] :
       {std::pair(Cpus{}, ""), {Cpus{3}, "3"}, {Cpus{0, 1, 2, 7, 9, 10}, "0-2,7,9-10"}}) {
    EXPECT_EQ(cpu_list_text(cpus), text);
    EXPECT_EQ(parse_cpu_list(text), cpus);
  }
  for (const char* text : {"x", "1-", "-1", "2,1", "0-3,2", "3-1", "0-99999999", "1,,2", "1 2"}) {
    EXPECT_THROW(parse_cpu_list(text), Error) << text;
  }
}

TEST(CpuList, OfThisProcess) {
  EXPECT_EQ(static_cast<int>(usable_cpu_list().size()), usable_cpus());
  EXPECT_NE(machine_key().find("/cpus:" + cpu_list_text(usable_cpu_list())), std::string::npos);
}

TEST(NumaNode, IsTheOneThatHasAllCpus) {
  std::string pattern = (std::filesystem::temp_directory_path() / "q7x2-numa-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const std::filesystem::path nodes = pattern;
  // Node 2 is memory without processors, as CXL's is.
  for (const auto& [node, cpus] :
       {std::pair("node0", "0-3,8-11\n"), {"node1", "4-7,12-15\n"}, {"node2", "\n"}}) {
    std::filesystem::create_directory(nodes / node);
    std::ofstream(nodes / node / "cpulist") << cpus;
  }
  std::filesystem::create_directory(nodes / "power");
  EXPECT_EQ(numa_node_of_cpus({0, 1}, nodes), 0);
  EXPECT_EQ(numa_node_of_cpus({4, 15}, nodes), 1);
  EXPECT_EQ(numa_node_of_cpus({3, 4}, nodes), -1);
  EXPECT_EQ(numa_node_of_cpus({}, nodes), -1);
  EXPECT_EQ(numa_node_of_cpus({99}, nodes), -1);
  EXPECT_EQ(numa_node_of_cpus({0}, nodes / "nowhere"), -1);
  std::filesystem::remove_all(nodes);
}

}  // namespace
}  // namespace q7x2
