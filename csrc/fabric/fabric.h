// Fabric: what is known of the hosts of one group and of the network between them.
//
// It has three levels: racks, hosts, and the NUMA nodes that ranks are bound to. fabric/routes.h
// says which resources the traffic between two ranks takes.
//
// All ranks of a group hold an equal Fabric: the planner's choices follow from it without talking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "fabric/host.h"

namespace q7x2 {

struct Fabric {
  /// What hwloc and the kernel say of a host; all zero in a Fabric made by hand.
  struct Hardware {
    /// Hosts that have the same one, see machine_key(), share their cores. Empty: not known.
    std::string machine;
    std::string cpu;  ///< model
    int packages = 0;
    int numa_nodes = 0;
    int cores = 0;
    int threads = 0;                     ///< hardware threads
    uint64_t memory = 0;                 ///< bytes
    std::vector<NetworkInterface> nics;  ///< up, loopback left out
    std::vector<IoDevice> rdma;
    std::vector<IoDevice> gpus;
  };
  /// How fast one core, or another device, is at a codec: bytes of fp32 elements per second.
  struct CodecRate {
    std::string name;
    double encode = 0;
    double decode = 0;
    // Rates of codecs that select; 0 for other codecs.
    double encode_sum = 0;  ///< encodes a sum with this many elements
    double select = 0;      ///< passes over the whole tensor before encoding
  };
  /// How fast a host's own device is, in bytes per second. A rate of 0 is not known.
  struct Rates {
    std::string device = "cpu";  ///< "cpu" means one core of it
    double copy = 0;
    double reduce = 0;
    std::vector<CodecRate> codecs;
  };
  /// A machine whose processes share memory.
  struct Host {
    std::string name;
    std::string key;     ///< see host_key(); empty in a Fabric made by hand
    int cores = 1;       ///< hardware threads the ranks may use
    int rack = 0;        ///< index into `racks`
    double egress = 0;   ///< bytes a second out of the NIC it shares with the switched network
    double ingress = 0;  ///< bytes a second into it
    Hardware hardware = {};
    /// By device, where they differ from the Fabric's `copy_rate`, `reduce_rate` and `codecs`.
    std::vector<Rates> rates = {};
  };
  /// Where a rank may run, by its affinity mask.
  struct Binding {
    int numa_node = -1;  ///< the node of all its hardware threads; -1: several, or not known
    std::string cpus;    ///< hardware threads, as "0-7,16"; empty: not known

    bool operator==(const Binding&) const = default;
  };
  /// What traffic between two NUMA nodes of a host costs.
  struct Interconnect {
    double alpha_factor = 2;  ///< times the latency inside a node
    double rate = 20e9;       ///< bytes per second of all traffic between nodes; 0: does not limit
    bool measured = false;    ///< the factor; else a documented default
  };
  /// Hosts behind one cable to the rest. A Fabric has at least one rack; the only one has no cable.
  struct Rack {
    std::string name;
    double up = 0;    ///< bytes a second out of the rack, of all its hosts together; 0: no limit
    double down = 0;  ///< bytes a second into it
    /// Seconds that a message to another rack takes longer on its way out of this one, and one from
    /// another rack on its way into it.
    double alpha = 0;
  };
  /// A private wire between two hosts, apart from the switched network. Traffic between them takes
  /// it.
  struct Link {
    int a = 0;  ///< hosts
    int b = 0;
    double rate = 0;   ///< bytes a second, each way
    double alpha = 0;  ///< seconds from one end to the other
  };

  /// The cost of one message in addition to its bytes. A tiny one takes alpha + 2 overhead.
  struct Cost {
    double alpha = 0;       ///< seconds from one rank to another, whatever the size
    double overhead = 0;    ///< seconds of CPU time for each message, at each end
    bool measured = false;  ///< else a documented default
  };
  /// Memory of the devices of one host, one for each rank.
  struct DeviceMemory {
    double alpha = 15e-6;        ///< seconds from one to another, whatever the size
    double overhead = 5e-6;      ///< seconds of CPU time for each message, at each end
    double rate = 20e9;          ///< bytes per second from one to another
    double reduce_rate = 200e9;  ///< bytes per second that one folds into a sum
  };
  /// What was measured from one host to another.
  struct Pair {
    int from = 0;  ///< hosts
    int to = 0;
    double alpha = 0;         ///< seconds, as in Cost
    double alpha_spread = 0;  ///< interquartile range of the repetitions, relative to the median
    double rate = 0;          ///< bytes a second, while all hosts talked in pairs
    double rate_spread = 0;   ///< range of the rates of parts of the run, relative to the rate
    double solo = 0;          ///< bytes a second with nobody else talking; 0: not measured
    /// Bytes that one connection between far hosts keeps on its way, so that in each round trip,
    /// two alpha, no more pass; 0: as many as the route takes.
    double window = 0;
  };
  /// The time that a collective was measured to take.
  struct Tuned {
    Collective collective = Collective::kAllReduce;
    int ranks = 0;
    uint64_t bytes = 0;        ///< length of the buffer, or of one part if each rank has a part
    std::string algorithm;     ///< as the planner calls it, "aggregator:2"
    uint64_t slice_bytes = 0;  ///< how it was cut, see Choice
    int window = 1;            ///< slices in progress
    double seconds = 0;        ///< median
  };
  /// The source of a Fabric whose latencies were measured, and whose rates are assumed until they
  /// are.
  static constexpr const char* kLatencies = "latencies";
  /// Where a Fabric comes from.
  struct Provenance {
    /// "default", "probe", kLatencies; anything in a file made by hand.
    std::string source = "default";
    std::string note;                              ///< why it is not better than it is
    int64_t time = 0;                              ///< when the probe ran, seconds since 1970
    double seconds = 0;                            ///< how long the probe took
    std::string q7x2, ucx, torch, driver, kernel;  ///< versions on rank 0
  };

  std::vector<int> host_of;       ///< by rank
  std::vector<Binding> bindings;  ///< by rank; empty: not known
  std::vector<Host> hosts;
  /// Where aggregators run: processes of the job that have no rank, one for each entry. An entry
  /// with the key of one of `hosts` is on that host.
  std::vector<Host> servers;
  std::vector<Rack> racks;
  std::vector<Link> links;
  std::vector<Pair> pairs;
  std::vector<Tuned> tuned;
  std::vector<CodecRate> codecs;
  Provenance made;

  Cost memory{1e-6, 0.3e-6};  ///< between ranks of one host
  Interconnect interconnect;
  DeviceMemory devices;       ///< documented defaults, unless a file has others
  double copy_rate = 8e9;     ///< bytes per second that one core copies; 0: does not limit
  double reduce_rate = 8e9;   ///< bytes per second that one core folds into a sum; 0: the same
  Cost network{30e-6, 3e-6};  ///< between hosts
  /// Bytes that a NIC, a cable or a link lets pass at once after a pause, as shaped ones do.
  double burst = 0;

  int world_size() const { return static_cast<int>(host_of.size()); }
  bool same_host(int a, int b) const {
    return host_of[static_cast<size_t>(a)] == host_of[static_cast<size_t>(b)];
  }
  bool one_host() const { return hosts.size() <= 1; }
  bool awaits_rates() const { return made.source == kLatencies; }
  int rack_of(int rank) const {
    return hosts[static_cast<size_t>(host_of[static_cast<size_t>(rank)])].rack;
  }

  /// The NUMA node that a rank is bound to; -1: none, or not known.
  int numa_of(int rank) const {
    return bindings.empty() ? -1 : bindings[static_cast<size_t>(rank)].numa_node;
  }
  /// Whether two ranks of one host are bound to different NUMA nodes.
  bool crosses_numa(int a, int b) const {
    return same_host(a, b) && numa_of(a) >= 0 && numa_of(b) >= 0 && numa_of(a) != numa_of(b);
  }

  // Rates of a host's device, in bytes per second. The CPU's are the Fabric's where the host has
  // none of its own. A rate of 0 does not limit, or is not known of another device.
  double host_copy_rate(int host, std::string_view device = "cpu") const;
  double host_reduce_rate(int host, std::string_view device = "cpu") const;
  /// Null where it is not known.
  const CodecRate* host_codec_rate(int host, std::string_view codec,
                                   std::string_view device = "cpu") const;
  // The same of the rank's host.
  double copy_rate_of(int rank, std::string_view device = "cpu") const {
    return host_copy_rate(host_of[static_cast<size_t>(rank)], device);
  }
  double reduce_rate_of(int rank, std::string_view device = "cpu") const {
    return host_reduce_rate(host_of[static_cast<size_t>(rank)], device);
  }

  /// Ranks in an order in which neighbours are near: by rack, host, NUMA node and rank.
  std::vector<int> near_order() const;
  /// The Fabric of some of the ranks, renumbered in the given order; hosts and racks that lose all
  /// their ranks go, and with them the tuned times, which were all hosts'. Throws
  /// Error(kInvalidArgument) where a rank is out of range or named twice.
  Fabric subset(const std::vector<int>& ranks) const;
  /// The Fabric of all members of a job: the ranks, then the servers in their order as if they were
  /// further ranks. It has no `servers` of its own.
  Fabric with_servers() const;
  /// Whether both have the same hosts, by key, in any order. False where a key is empty.
  bool same_hosts(const Fabric& other) const;
  /// The same ranks, with what messages cost that go from device to device. Without servers, and
  /// without times, which are hosts'.
  Fabric of_devices() const;
  /// Adds measured times. They take the place of all that was measured before of the same
  /// collective, ranks and bytes: only times of one run are compared with each other.
  void learn(const std::vector<Tuned>& times);
  /// Throws Error(kInvalidArgument) unless every index is in range, every host has a rank, and
  /// every rate and cost is finite and not negative.
  void validate() const;

  /// All ranks on one host.
  static Fabric one_host_of(int ranks, int cores);
  /// What is taken for granted of hosts that nobody has measured: 1 Gbit/s, a core for each rank.
  /// `host_of`: by rank.
  static Fabric assumed(std::vector<int> host_of);
  /// One switch; `rate` bytes a second into and out of each host.
  static Fabric uniform(int hosts, int ranks_per_host, double rate);
};

/// A rate to divide by: a rate of 0 in a Fabric means that it does not limit.
double rate_or_unlimited(double rate);

}  // namespace q7x2
