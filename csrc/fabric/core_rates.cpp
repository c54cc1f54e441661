#include "fabric/core_rates.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "fabric/scatter.h"

namespace q7x2 {
namespace {

// Rates of equal hosts differ by so much when they are measured on loaded machines.
constexpr double kSameRate = 1.25;

bool differs(double rate, double typical) {
  return rate > 0 && (rate > kSameRate * typical || rate * kSameRate < typical);
}

constexpr std::array kCodecFigures = {&Fabric::CodecRate::encode, &Fabric::CodecRate::decode,
                                      &Fabric::CodecRate::encode_sum, &Fabric::CodecRate::select};

/// Two measurements of the same cores. Whatever else ran can only have made one slower.
Fabric::Rates best_of(Fabric::Rates a, const Fabric::Rates& b) {
  a.copy = std::max(a.copy, b.copy);
  a.reduce = std::max(a.reduce, b.reduce);
  for (const Fabric::CodecRate& other : b.codecs) {
    const auto own = std::ranges::find(a.codecs, other.name, &Fabric::CodecRate::name);
    if (own == a.codecs.end()) {
      a.codecs.push_back(other);
      continue;
    }
    for (const auto figure : kCodecFigures) *own.*figure = std::max(*own.*figure, other.*figure);
  }
  return a;
}

/// By host; hosts of one machine share their cores.
std::vector<Fabric::Rates> rates_of_machines(const std::vector<Measurements::Host>& hosts) {
  std::map<std::string, Fabric::Rates> of_machine;
  for (const auto& host : hosts) {
    const std::string& machine = host.hardware.machine;
    const auto [it, is_new] = of_machine.try_emplace(machine, host.rates);
    if (!is_new) it->second = best_of(it->second, host.rates);
  }
  std::vector<Fabric::Rates> rates;
  for (const auto& host : hosts) {
    const std::string& machine = host.hardware.machine;
    rates.push_back(machine.empty() ? host.rates : of_machine.at(machine));
  }
  return rates;
}

template <typename Figure>
double median_of_known(const std::vector<Fabric::Rates>& all, const Figure& figure) {
  std::vector<double> values;
  for (const Fabric::Rates& rates : all) {
    if (const double value = figure(rates); value > 0) values.push_back(value);
  }
  return median(std::move(values));
}

std::vector<Fabric::CodecRate> typical_codecs(const std::vector<Fabric::Rates>& all) {
  std::vector<Fabric::CodecRate> typical;
  for (const Fabric::CodecRate& first : all.front().codecs) {
    Fabric::CodecRate codec{.name = first.name};
    for (const auto figure : kCodecFigures) {
      codec.*figure = median_of_known(all, [&](const Fabric::Rates& rates) {
        const auto own = std::ranges::find(rates.codecs, codec.name, &Fabric::CodecRate::name);
        return own == rates.codecs.end() ? 0 : *own.*figure;
      });
    }
    typical.push_back(codec);
  }
  return typical;
}

}  // namespace

void set_core_rates(const std::vector<Measurements::Host>& hosts, Fabric& fabric) {
  const std::vector<Fabric::Rates> all = rates_of_machines(hosts);
  const double copy = median_of_known(all, [](const auto& rates) { return rates.copy; });
  const double reduce = median_of_known(all, [](const auto& rates) { return rates.reduce; });
  if (copy > 0) fabric.copy_rate = copy;
  if (reduce > 0) fabric.reduce_rate = reduce;
  fabric.codecs = typical_codecs(all);
  for (size_t host = 0; host < all.size(); ++host) {
    Fabric::Rates own;
    if (differs(all[host].copy, fabric.copy_rate)) own.copy = all[host].copy;
    if (differs(all[host].reduce, fabric.reduce_rate)) own.reduce = all[host].reduce;
    for (const Fabric::CodecRate& codec : all[host].codecs) {
      const auto typical = std::ranges::find(fabric.codecs, codec.name, &Fabric::CodecRate::name);
      const bool is_own = typical == fabric.codecs.end() ||
                          std::ranges::any_of(kCodecFigures, [&](const auto figure) {
                            return differs(codec.*figure, *typical.*figure);
                          });
      if (is_own) own.codecs.push_back(codec);
    }
    if (own.copy > 0 || own.reduce > 0 || !own.codecs.empty()) {
      fabric.hosts[host].rates.push_back(std::move(own));
    }
  }
}

}  // namespace q7x2
