#include "plan/cost/machines.h"

#include <algorithm>
#include <unordered_map>

namespace q7x2 {

Machines::Machines(const Fabric& fabric) {
  std::unordered_map<std::string, size_t> known;
  std::vector<size_t> of_host;
  for (const Fabric::Host& host : fabric.hosts) {
    const size_t next = all_.size();
    const std::string& key = host.hardware.machine;
    const size_t index = key.empty() ? next : known.emplace(key, next).first->second;
    of_host.push_back(index);
    if (index == next) {
      all_.push_back({.name = host.name, .cores = host.cores});
    } else {
      all_[index].name += "+" + host.name;
    }
  }
  for (const int host : fabric.host_of) {
    of_rank_.push_back(of_host[static_cast<size_t>(host)]);
    ++all_[of_rank_.back()].ranks;
  }
}

double Machines::most_turns() const {
  double turns = 1;
  for (const Machine& machine : all_) {
    turns = std::max(turns, static_cast<double>(machine.ranks) / machine.cores);
  }
  return turns;
}

}  // namespace q7x2
