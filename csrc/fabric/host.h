// This host: who shares memory with this process, and what hwloc and the kernel know about it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace q7x2 {

/// A network interface of this process's network namespace.
struct NetworkInterface {
  std::string name;
  std::vector<std::string> addresses;  ///< IPv4 and IPv6, in text
  bool up = false;
  bool loopback = false;
  int64_t megabits_per_second = 0;  ///< as the driver reports it; 0 where it does not
  int numa_node = -1;               ///< -1 where unknown, as for virtual interfaces
};

/// A device that hwloc finds on the PCI bus: an RDMA adapter or a GPU.
struct IoDevice {
  std::string name;
  std::string pci_bus_id;  ///< "0000:3b:00.0", as CUDA and sysfs write it
  int numa_node = -1;      ///< -1 where unknown
};

struct HostInfo {
  std::string hostname;
  std::string boot_id;         ///< changes at each boot, differs between machines
  uint64_t pid_namespace = 0;  ///< inode numbers of the namespaces this process is in
  uint64_t ipc_namespace = 0;
  uint64_t net_namespace = 0;
  int usable_cpus = 0;  ///< hardware threads this process may run on (its affinity mask)
  int packages = 0;
  int numa_nodes = 0;
  int cores = 0;
  int hardware_threads = 0;
  uint64_t memory_bytes = 0;
  std::string cpu_model;
  std::vector<NetworkInterface> network_interfaces;
  std::vector<IoDevice> rdma_devices;
  std::vector<IoDevice> gpus;
};

/// Reads all of it. hwloc's discovery takes some milliseconds: for start-up and reports.
/// Throws Error(kTransport) where the kernel or hwloc refuses.
HostInfo host_info();

/// Equal for two processes exactly if they can share memory and see each other's pids: boot id, IPC
/// namespace and PID namespace. The environment variable Q7X2_HOST_ID is added to the identity, so
/// it can part processes of one host (tests do) and never unite those of two.
/// Cheap: reads three files and does not start hwloc. Throws Error(kTransport) without /proc.
std::string host_key();

/// Equal for two processes exactly if they share the hardware threads that they may run on: boot id
/// and affinity. Containers of one machine often do. Throws Error(kTransport) without /proc.
std::string machine_key();

/// Hardware threads this process may run on, at least 1.
int usable_cpus();

/// Their numbers, ascending. Throws Error(kTransport) where the kernel refuses.
std::vector<int> usable_cpu_list();

/// "0-2,7" for 0, 1, 2 and 7, as the kernel writes it; `cpus` ascend.
std::string cpu_list_text(const std::vector<int>& cpus);

/// The reverse. Throws Error(kInvalidArgument) where the text is no such list.
std::vector<int> parse_cpu_list(const std::string& text);

/// The only NUMA node that has some of `cpus`, by the kernel's files in `directory`; -1 if they are
/// of several, or if the files do not say.
int numa_node_of_cpus(const std::vector<int>& cpus,
                      const std::string& directory = "/sys/devices/system/node");

}  // namespace q7x2
