#include "fabric/host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include <hwloc.h>

#include "base/error.h"

namespace q7x2 {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::kTransport, what + ": " + std::strerror(errno));
}

std::string read_boot_id() {
  const char* path = "/proc/sys/kernel/random/boot_id";
  std::ifstream file(path);
  std::string id;
  if (!(file >> id)) fail(std::string("cannot read ") + path + ", which tells hosts apart");
  return id;
}

uint64_t namespace_inode(const char* name) {
  const std::string path = std::string("/proc/self/ns/") + name;
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) fail("cannot read " + path + ", which tells hosts apart");
  return status.st_ino;
}

std::string read_hostname() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) fail("gethostname");
  return name;
}

// sysfs says -1, or refuses to be read, where there is no such figure (links that are down,
// virtual interfaces).
int64_t link_megabits(const std::string& interface) {
  std::ifstream file("/sys/class/net/" + interface + "/speed");
  int64_t speed = 0;
  return file >> speed && speed > 0 ? speed : 0;
}

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  } else {
    return "";
  }
  return inet_ntop(address->sa_family, bytes, text, sizeof(text)) != nullptr ? text : "";
}

// From the kernel and not from hwloc, which leaves out interfaces without a bus device and reads
// sysfs, where another network namespace may be mounted.
std::vector<NetworkInterface> network_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);

  std::map<std::string, NetworkInterface> by_name;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    NetworkInterface& interface = by_name[entry->ifa_name];
    interface.name = entry->ifa_name;
    interface.up = (entry->ifa_flags & IFF_RUNNING) != 0;
    interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    if (entry->ifa_addr == nullptr) continue;
    std::string text = address_text(entry->ifa_addr);
    if (!text.empty()) interface.addresses.push_back(std::move(text));
  }

  std::vector<NetworkInterface> interfaces;
  for (auto& [name, interface] : by_name) {
    interface.megabits_per_second = link_megabits(name);
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyDeleter>;

Topology load_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) fail("hwloc_topology_init");
  Topology topology(raw);
  // These components would start a GPU driver or open an X display inside the user's process.
  for (const char* component : {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"}) {
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  }
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(raw) != 0) fail("hwloc_topology_load");
  return topology;
}

int count(hwloc_topology_t topology, hwloc_obj_type_t type) {
  const int objects = hwloc_get_nbobjs_by_type(topology, type);
  return objects > 0 ? objects : 0;
}

/// The hardware threads this process may run on.
std::vector<int> affinity() {
  // The kernel refuses a mask smaller than its own: grow it until it fits.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(
        CPU_ALLOC(static_cast<size_t>(capacity)), [](cpu_set_t* set) { CPU_FREE(set); });
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(capacity));
    if (sched_getaffinity(0, bytes, mask.get()) == 0) {
      std::vector<int> cpus;
      for (int cpu = 0; cpu < capacity; ++cpu) {
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, mask.get())) cpus.push_back(cpu);
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  fail("sched_getaffinity");
}

std::string info_value(hwloc_obj_t object, const char* key) {
  const char* value = object != nullptr ? hwloc_obj_get_info_by_name(object, key) : nullptr;
  return value != nullptr ? value : "";
}

// A device near several NUMA nodes (or on a machine with one) has no node of its own to prefer.
int numa_node_of(hwloc_topology_t topology, hwloc_obj_t device) {
  const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, device);
  if (near == nullptr || near->nodeset == nullptr) return -1;
  return hwloc_bitmap_weight(near->nodeset) == 1 ? hwloc_bitmap_first(near->nodeset) : -1;
}

std::string pci_bus_id(hwloc_obj_t device) {
  while (device != nullptr && device->type != HWLOC_OBJ_PCI_DEVICE) device = device->parent;
  if (device == nullptr) return "";
  const auto& pci = device->attr->pcidev;
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.%x", static_cast<unsigned>(pci.domain),
                static_cast<unsigned>(pci.bus), static_cast<unsigned>(pci.dev),
                static_cast<unsigned>(pci.func));
  return text;
}

// 0x03 is the PCI base class of display controllers. 0x0300 (VGA) of a server's management chip is
// one too; a GPU to compute on says 3D controller, or comes from a vendor that makes such GPUs.
bool is_compute_gpu(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  constexpr unsigned kNvidia = 0x10de;
  constexpr unsigned kAmd = 0x1002;
  constexpr unsigned k3dController = 0x0302;
  const unsigned base_class = static_cast<unsigned>(pci.class_id) >> 8;
  return pci.class_id == k3dController ||
         (base_class == 0x03 && (pci.vendor_id == kNvidia || pci.vendor_id == kAmd));
}

void read_devices(hwloc_topology_t topology, HostInfo& info) {
  for (hwloc_obj_t device = nullptr;
       (device = hwloc_get_next_osdev(topology, device)) != nullptr;) {
    if (device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
      info.rdma_devices.push_back(
          {device->name, pci_bus_id(device), numa_node_of(topology, device)});
    } else if (device->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK) {
      for (NetworkInterface& interface : info.network_interfaces) {
        if (interface.name == device->name) interface.numa_node = numa_node_of(topology, device);
      }
    }
  }
  for (hwloc_obj_t device = nullptr;
       (device = hwloc_get_next_pcidev(topology, device)) != nullptr;) {
    if (!is_compute_gpu(device->attr->pcidev)) continue;
    info.gpus.push_back(
        {info_value(device, "PCIDevice"), pci_bus_id(device), numa_node_of(topology, device)});
  }
}

/// Whether two ascending lists have an item in common.
bool overlap(const std::vector<int>& a, const std::vector<int>& b) {
  return std::ranges::any_of(a, [&b](int item) { return std::ranges::binary_search(b, item); });
}

}  // namespace

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string list;
  for (size_t first = 0; first < cpus.size();) {
    size_t end = first + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    list += (list.empty() ? "" : ",") + std::to_string(cpus[first]);
    if (end - first > 1) list += "-" + std::to_string(cpus[end - 1]);
    first = end;
  }
  return list;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  constexpr int kMostCpus = 1 << 16;
  std::vector<int> cpus;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0;
    int last = 0;
    char rest = 0;
    const bool is_range = std::sscanf(range.c_str(), "%d-%d%c", &first, &last, &rest) == 2;
    const bool is_one = !is_range && std::sscanf(range.c_str(), "%d%c", &first, &rest) == 1;
    if (is_one) last = first;
    const bool ascends = first >= 0 && (cpus.empty() || first > cpus.back());
    if (!(is_range || is_one) || !ascends || last < first || last >= kMostCpus) {
      throw Error(ErrorCode::kInvalidArgument, "'" + text + "' is no list of CPUs such as 0-7,16");
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

int numa_node_of_cpus(const std::vector<int>& cpus, const std::string& directory) {
  std::error_code problem;
  int found = -1;
  for (const auto& entry : std::filesystem::directory_iterator(directory, problem)) {
    int node = 0;
    char rest = 0;
    if (std::sscanf(entry.path().filename().c_str(), "node%d%c", &node, &rest) != 1) continue;
    std::ifstream file(entry.path() / "cpulist");
    std::string list;
    if (!std::getline(file, list) || !overlap(cpus, parse_cpu_list(list))) continue;
    if (found >= 0) return -1;
    found = node;
  }
  return found;
}

std::vector<int> usable_cpu_list() {
  return affinity();
}

int usable_cpus() {
  return static_cast<int>(affinity().size());
}

std::string machine_key() {
  return read_boot_id() + "/cpus:" + cpu_list_text(affinity());
}

std::string host_key() {
  std::string key = read_boot_id() + "/ipc:" + std::to_string(namespace_inode("ipc")) +
                    "/pid:" + std::to_string(namespace_inode("pid"));
  if (const char* part = std::getenv("Q7X2_HOST_ID"); part != nullptr && *part != '\0') {
    key += std::string("/id:") + part;
  }
  return key;
}

HostInfo host_info() {
  HostInfo info;
  info.hostname = read_hostname();
  info.boot_id = read_boot_id();
  info.pid_namespace = namespace_inode("pid");
  info.ipc_namespace = namespace_inode("ipc");
  info.net_namespace = namespace_inode("net");
  info.usable_cpus = usable_cpus();
  info.network_interfaces = network_interfaces();

  const Topology topology = load_topology();
  info.packages = count(topology.get(), HWLOC_OBJ_PACKAGE);
  info.numa_nodes = count(topology.get(), HWLOC_OBJ_NUMANODE);
  info.cores = count(topology.get(), HWLOC_OBJ_CORE);
  info.hardware_threads = count(topology.get(), HWLOC_OBJ_PU);
  info.memory_bytes = hwloc_get_root_obj(topology.get())->total_memory;
  info.cpu_model =
      info_value(hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_PACKAGE, 0), "CPUModel");
  read_devices(topology.get(), info);
  return info;
}

}  // namespace q7x2
