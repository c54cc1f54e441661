#include "fabric/fabric.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
constexpr double kGigabit = 125e6;
constexpr std::string_view kCpu = "cpu";

[[noreturn]] void invalid(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "invalid fabric: " + what);
}

void require_quantity(double value, const std::string& what) {
  if (!std::isfinite(value) || value < 0) {
    invalid(what + " is " + std::to_string(value) + ", expected a number of at least 0");
  }
}

void require_index(int index, size_t count, const std::string& what) {
  if (index < 0 || static_cast<size_t>(index) >= count) {
    invalid(what + " is " + std::to_string(index) + ", expected 0 ... " +
            std::to_string(static_cast<int64_t>(count) - 1));
  }
}

void require_codecs(const std::vector<Fabric::CodecRate>& codecs, const std::string& of) {
  for (const Fabric::CodecRate& codec : codecs) {
    const std::string name = " rate of codec " + codec.name + of;
    require_quantity(codec.encode, "the encode" + name);
    require_quantity(codec.decode, "the decode" + name);
    require_quantity(codec.encode_sum, "the encode_sum" + name);
    require_quantity(codec.select, "the select" + name);
  }
}

void require_host(const Fabric::Host& host, size_t racks, const std::string& name) {
  if (host.cores < 1) invalid(name + " has " + std::to_string(host.cores) + " cores");
  require_index(host.rack, racks, "the rack of " + name);
  require_quantity(host.egress, "the egress of " + name);
  require_quantity(host.ingress, "the ingress of " + name);
  for (const Fabric::Rates& rates : host.rates) {
    require_quantity(rates.copy, "the copy rate of " + name);
    require_quantity(rates.reduce, "the reduce rate of " + name);
    require_codecs(rates.codecs, " of " + name);
  }
}

const Fabric::Rates* find_device(const Fabric::Host& host, std::string_view device) {
  const auto found = std::ranges::find(host.rates, device, &Fabric::Rates::device);
  return found == host.rates.end() ? nullptr : &*found;
}

const Fabric::CodecRate* find_codec(const std::vector<Fabric::CodecRate>& codecs,
                                    std::string_view name) {
  const auto found = std::ranges::find(codecs, name, &Fabric::CodecRate::name);
  return found == codecs.end() ? nullptr : &*found;
}

double own_rate(const Fabric::Host& host, std::string_view device, double Fabric::Rates::*rate,
                double of_cpus) {
  const Fabric::Rates* own = find_device(host, device);
  if (own != nullptr && own->*rate > 0) return own->*rate;
  return device == kCpu ? of_cpus : 0;
}

void require_connections(const Fabric& fabric) {
  for (size_t i = 0; i < fabric.racks.size(); ++i) {
    require_quantity(fabric.racks[i].up, "the uplink of rack " + std::to_string(i));
    require_quantity(fabric.racks[i].down, "the downlink of rack " + std::to_string(i));
    require_quantity(fabric.racks[i].alpha, "the latency of rack " + std::to_string(i));
  }
  for (size_t i = 0; i < fabric.links.size(); ++i) {
    const std::string name = "link " + std::to_string(i);
    require_index(fabric.links[i].a, fabric.hosts.size(), "an end of " + name);
    require_index(fabric.links[i].b, fabric.hosts.size(), "an end of " + name);
    if (fabric.links[i].a == fabric.links[i].b) invalid(name + " joins a host with itself");
    require_quantity(fabric.links[i].rate, "the rate of " + name);
    require_quantity(fabric.links[i].alpha, "the latency of " + name);
  }
  for (size_t i = 0; i < fabric.pairs.size(); ++i) {
    const std::string name = "pair " + std::to_string(i);
    require_index(fabric.pairs[i].from, fabric.hosts.size(), "an end of " + name);
    require_index(fabric.pairs[i].to, fabric.hosts.size(), "an end of " + name);
    for (const double value :
         {fabric.pairs[i].alpha, fabric.pairs[i].alpha_spread, fabric.pairs[i].rate,
          fabric.pairs[i].rate_spread, fabric.pairs[i].solo, fabric.pairs[i].window}) {
      require_quantity(value, "a figure of " + name);
    }
  }
}

void require_rates(const Fabric& fabric) {
  for (const auto& [name, cost] :
       {std::pair("memory", fabric.memory), std::pair("network", fabric.network)}) {
    require_quantity(cost.alpha, std::string("the latency of ") + name);
    require_quantity(cost.overhead, std::string("the overhead of ") + name);
  }
  require_quantity(fabric.interconnect.alpha_factor, "the latency factor between NUMA nodes");
  require_quantity(fabric.interconnect.rate, "the rate between NUMA nodes");
  require_quantity(fabric.devices.alpha, "the latency between devices");
  require_quantity(fabric.devices.overhead, "the overhead of messages between devices");
  require_quantity(fabric.devices.rate, "the rate between devices");
  require_quantity(fabric.devices.reduce_rate, "the reduce rate of devices");
  require_quantity(fabric.copy_rate, "the copy rate");
  require_quantity(fabric.reduce_rate, "the reduce rate");
  require_quantity(fabric.burst, "the burst");
}

}  // namespace

double rate_or_unlimited(double rate) {
  return rate > 0 ? rate : kUnlimited;
}

double Fabric::host_copy_rate(int host, std::string_view device) const {
  return own_rate(hosts[static_cast<size_t>(host)], device, &Rates::copy, copy_rate);
}

double Fabric::host_reduce_rate(int host, std::string_view device) const {
  return own_rate(hosts[static_cast<size_t>(host)], device, &Rates::reduce, reduce_rate);
}

const Fabric::CodecRate* Fabric::host_codec_rate(int host, std::string_view codec,
                                                 std::string_view device) const {
  const Rates* own = find_device(hosts[static_cast<size_t>(host)], device);
  const CodecRate* rate = own != nullptr ? find_codec(own->codecs, codec) : nullptr;
  if (rate == nullptr && device == kCpu) rate = find_codec(codecs, codec);
  return rate;
}

std::vector<int> Fabric::near_order() const {
  std::vector<int> order(host_of.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](int a, int b) {
    const auto place = [this](int rank) {
      return std::tuple(rack_of(rank), host_of[static_cast<size_t>(rank)], numa_of(rank));
    };
    return place(a) < place(b);
  });
  return order;
}

Fabric Fabric::subset(const std::vector<int>& ranks) const {
  Fabric part = *this;
  part.host_of.clear();
  part.bindings.clear();
  part.hosts.clear();
  part.racks.clear();
  part.links.clear();
  part.pairs.clear();
  std::vector<int> new_host(hosts.size(), -1);
  std::vector<int> new_rack(racks.size(), -1);
  const auto keep_rack = [&](int old) {
    int& rack = new_rack[static_cast<size_t>(old)];
    if (rack < 0) {
      rack = static_cast<int>(part.racks.size());
      part.racks.push_back(racks[static_cast<size_t>(old)]);
    }
    return rack;
  };
  std::vector<bool> named(host_of.size());
  for (const int rank : ranks) {
    require_index(rank, host_of.size(), "a rank of the subset");
    if (named[static_cast<size_t>(rank)]) invalid("rank " + std::to_string(rank) + " named twice");
    named[static_cast<size_t>(rank)] = true;
    const auto host = static_cast<size_t>(host_of[static_cast<size_t>(rank)]);
    if (new_host[host] < 0) {
      new_host[host] = static_cast<int>(part.hosts.size());
      part.hosts.push_back(hosts[host]);
      part.hosts.back().rack = keep_rack(hosts[host].rack);
    }
    part.host_of.push_back(new_host[host]);
    if (!bindings.empty()) part.bindings.push_back(bindings[static_cast<size_t>(rank)]);
  }
  for (Host& server : part.servers) server.rack = keep_rack(server.rack);
  for (const Link& link : links) {
    const int a = new_host[static_cast<size_t>(link.a)];
    const int b = new_host[static_cast<size_t>(link.b)];
    if (a >= 0 && b >= 0) part.links.push_back({a, b, link.rate, link.alpha});
  }
  for (Pair pair : pairs) {
    pair.from = new_host[static_cast<size_t>(pair.from)];
    pair.to = new_host[static_cast<size_t>(pair.to)];
    if (pair.from >= 0 && pair.to >= 0) part.pairs.push_back(pair);
  }
  if (part.hosts.size() != hosts.size()) part.tuned.clear();
  return part;
}

bool Fabric::same_hosts(const Fabric& other) const {
  const auto keys = [](const Fabric& fabric) {
    std::vector<std::string> all;
    for (const Host& host : fabric.hosts) all.push_back(host.key);
    std::sort(all.begin(), all.end());
    return all;
  };
  const std::vector<std::string> mine = keys(*this);
  return !mine.empty() && !mine.front().empty() && mine == keys(other);
}

Fabric Fabric::with_servers() const {
  Fabric all = *this;
  all.servers.clear();
  for (const Host& server : servers) {
    const auto same = std::ranges::find_if(
        all.hosts, [&](const Host& host) { return !server.key.empty() && host.key == server.key; });
    all.host_of.push_back(static_cast<int>(same - all.hosts.begin()));
    if (same == all.hosts.end()) all.hosts.push_back(server);
    if (!bindings.empty()) all.bindings.emplace_back();
  }
  return all;
}

void Fabric::learn(const std::vector<Tuned>& times) {
  std::erase_if(tuned, [&](const Tuned& old) {
    return std::any_of(times.begin(), times.end(), [&](const Tuned& time) {
      return time.collective == old.collective && time.ranks == old.ranks &&
             time.bytes == old.bytes;
    });
  });
  tuned.insert(tuned.end(), times.begin(), times.end());
}

void Fabric::validate() const {
  if (host_of.empty()) invalid("no ranks");
  if (racks.empty()) invalid("no racks");
  std::vector<bool> used(hosts.size());
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    require_index(host_of[rank], hosts.size(), "the host of rank " + std::to_string(rank));
    used[static_cast<size_t>(host_of[rank])] = true;
  }
  for (size_t i = 0; i < hosts.size(); ++i) {
    const std::string name = "host " + std::to_string(i);
    if (!used[i]) invalid(name + " has no rank");
    require_host(hosts[i], racks.size(), name);
  }
  for (size_t i = 0; i < servers.size(); ++i) {
    require_host(servers[i], racks.size(), "server " + std::to_string(i));
  }
  if (!bindings.empty() && bindings.size() != host_of.size()) {
    invalid(std::to_string(bindings.size()) + " bindings for " + std::to_string(host_of.size()) +
            " ranks");
  }
  require_connections(*this);
  require_codecs(codecs, "");
  for (size_t i = 0; i < tuned.size(); ++i) {
    const std::string name = "tuned time " + std::to_string(i);
    if (tuned[i].ranks < 1) invalid(name + " is of " + std::to_string(tuned[i].ranks) + " ranks");
    if (tuned[i].algorithm.empty()) invalid(name + " names no algorithm");
    require_quantity(tuned[i].seconds, "the seconds of " + name);
  }
  require_rates(*this);
}

// Each rank's device copies and adds by itself, and no NUMA node is in its way.
Fabric Fabric::of_devices() const {
  Fabric fabric = *this;
  fabric.servers.clear();
  fabric.tuned.clear();
  fabric.bindings.clear();
  fabric.memory = {.alpha = devices.alpha, .overhead = devices.overhead, .measured = false};
  fabric.copy_rate = devices.rate;
  fabric.reduce_rate = devices.reduce_rate;
  std::vector<int> ranks(hosts.size());
  for (const int host : host_of) ++ranks[static_cast<size_t>(host)];
  for (size_t i = 0; i < hosts.size(); ++i) {
    fabric.hosts[i].rates.clear();
    fabric.hosts[i].cores = std::max(hosts[i].cores, ranks[i]);
  }
  return fabric;
}

Fabric Fabric::one_host_of(int ranks, int cores) {
  Fabric fabric;
  fabric.host_of.assign(static_cast<size_t>(ranks), 0);
  fabric.hosts.push_back({.name = "h0", .key = {}, .cores = cores});
  fabric.racks.emplace_back();
  return fabric;
}

Fabric Fabric::assumed(std::vector<int> host_of) {
  Fabric fabric;
  fabric.racks.emplace_back();
  for (const int host : host_of) {
    for (auto next = static_cast<int>(fabric.hosts.size()); next <= host; ++next) {
      fabric.hosts.push_back({.name = "h" + std::to_string(next),
                              .key = {},
                              .cores = 0,
                              .egress = kGigabit,
                              .ingress = kGigabit});
    }
    ++fabric.hosts[static_cast<size_t>(host)].cores;
  }
  fabric.host_of = std::move(host_of);
  return fabric;
}

Fabric Fabric::uniform(int hosts, int ranks_per_host, double rate) {
  Fabric fabric;
  fabric.racks.emplace_back();
  for (int host = 0; host < hosts; ++host) {
    fabric.hosts.push_back({.name = "h" + std::to_string(host),
                            .key = {},
                            .cores = ranks_per_host,
                            .rack = 0,
                            .egress = rate,
                            .ingress = rate});
    fabric.host_of.insert(fabric.host_of.end(), static_cast<size_t>(ranks_per_host), host);
  }
  return fabric;
}

}  // namespace q7x2
