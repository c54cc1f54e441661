// Measurements: what a probe measured; fabric/infer.h makes a Fabric from it.
#pragma once

#include <string>
#include <vector>

#include "fabric/fabric.h"

namespace q7x2 {

/// Whether hosts are far from each other. Between others TCP's slow start is over within some
/// milliseconds. On a busy machine near hosts seem to be that far at most.
inline bool is_far(double round_trip) {
  constexpr double kFarRoundTrip = 5e-3;  // seconds
  return round_trip > kFarRoundTrip;
}

/// What a probe measured. Hosts are numbered in the order of their first ranks.
struct Measurements {
  /// The wires of a flow or a ping: the network that all hosts share, or a private link of the two
  /// hosts.
  static constexpr int kShared = 0;

  struct Host {
    std::string name;
    std::string key;
    int cores = 1;
    Fabric::Hardware hardware = {};
    Fabric::Rates rates = {};  ///< the rates of one core
  };
  struct Ping {
    int a = 0;  ///< hosts; equal for two ranks of one
    int b = 0;
    double round_trip = 0;  ///< seconds, with little disturbance
    double spread = 0;      ///< interquartile range over the median
    double overhead = 0;    ///< seconds for each of many messages sent at once; of near hosts
    int wire = kShared;
    bool crosses_numa = false;  ///< between two NUMA nodes of one host
  };
  struct Flow {
    int from = 0;  ///< hosts
    int to = 0;
    double rate = 0;  ///< bytes a second
    double spread = 0;
    int wire = kShared;
    double burst = 0;   ///< bytes that came at once, before the rest came at that rate
    double window = 0;  ///< bytes that one connection keeps on its way; 0: it fills its path
  };

  std::vector<int> host_of;  ///< by rank
  std::vector<Host> hosts;
  std::vector<Ping> pings;
  std::vector<std::vector<Flow>> rounds;  ///< the flows of a round were there at the same time
  std::vector<Flow> solo;                 ///< each alone
};

}  // namespace q7x2
