// A network whose rates change, watched by a RateWatch.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "ledger/rate_watch.h"

namespace q7x2::test {

inline constexpr int kAny = kAnyHost;
inline constexpr int64_t kPause = 30'000;

using Routes = std::vector<std::pair<int, int>>;

inline Routes ring(int hosts) {
  Routes routes;
  for (int host = 0; host < hosts; ++host) routes.emplace_back(host, (host + 1) % hosts);
  return routes;
}

inline Routes all_pairs(int hosts) {
  Routes routes;
  for (int from = 0; from < hosts; ++from) {
    for (int to = 0; to < hosts; ++to) {
      if (from != to) routes.emplace_back(from, to);
    }
  }
  return routes;
}

inline Wiring one_rack(int hosts) {
  return {.rack_of = std::vector<int>(static_cast<size_t>(hosts)), .linked = {}, .promised = {}};
}

/// Hosts whose links and processors have factors, and whose rates vary. There are two samples per
/// second.
class Network {
 public:
  Network(int hosts, Routes routes, double spread, uint64_t seed, Wiring wiring = {})
      : watch(wiring.rack_of.empty() ? one_rack(hosts) : std::move(wiring)),
        hosts_(hosts),
        routes_(std::move(routes)),
        noise_(0, spread),
        random_(seed) {}

  /// Returns true if something has changed.
  bool sample() {
    now += between_samples;
    const RateWatch::Layout layout{hosts_};
    std::vector<RateWatch::Work> work(layout.size());
    for (const auto& [from, to] : routes_) {
      double rate = 100e3 * machine;
      for (const auto& [of, factor] : factors) {
        if (passes(from, to, of)) rate *= factor;
      }
      rate *= std::exp(noise_(random_));
      const int32_t sent = carries_nothing.contains({from, to}) ? 0 : kilobytes;
      work[layout.sent(from, to)] = {sent, static_cast<int32_t>(1e6 * sent / rate)};
    }
    for (int host = 0; host < hosts_; ++host) {
      work[layout.reduced(host)] = reduced(host);
      work[layout.turns(host)] = turns(host);
    }
    return watch.sample(pattern, now, kPause, work);
  }
  /// Number of samples until a change is found; `most` + 1 if it is not found.
  int samples_until_change(int most) {
    int samples = 1;
    while (samples <= most && !sample()) ++samples;
    return samples;
  }
  void set_host(int host, double factor) {
    factors[{host, kAny}] = factor;
    factors[{kAny, host}] = factor;
  }

  RateWatch watch;
  std::map<RatedResource, double> factors;
  std::set<std::pair<int, int>> carries_nothing;
  int32_t kilobytes = 10'000;  // on each route, per sample
  int64_t between_samples = 500;
  uint64_t pattern = 1;          // see RateWatch
  std::map<int, double> speeds;  // factors of processors that run
  std::map<int, double> shares;  // share of the time for which a processor runs, if it could
  std::set<int> idle;            // hosts that do not add up anything
  double stop = 0;               // seconds for which a process waits for its next turn
  double machine = 1;
  int64_t now = 0;

 private:
  bool passes(int from, int to, const RatedResource& of) const {
    const Wiring& wiring = watch.wiring();
    const auto rack = [&](int host) { return wiring.rack_of[static_cast<size_t>(host)]; };
    const auto is = [](int one, int other) { return other == kAny || one == other; };
    switch (of.kind) {
      case RatedResource::Kind::kCable:
        return rack(from) != rack(to) && is(rack(from), of.from) && is(rack(to), of.to);
      case RatedResource::Kind::kLink:
        return wiring.is_linked(from, to) && from == of.from && to == of.to;
      case RatedResource::Kind::kNetwork:
        return !wiring.is_linked(from, to) && is(from, of.from) && is(to, of.to);
    }
    return false;
  }
  static double of(const std::map<int, double>& some, int host) {
    const auto found = some.find(host);
    return found == some.end() ? 1 : found->second;
  }
  int32_t noisy(double seconds) {
    return static_cast<int32_t>(1e6 * seconds * std::exp(noise_(random_)));
  }
  /// How long a thread waits that wants to run for `seconds`.
  double waits(int host, double seconds) {
    const double share = of(shares, host);
    if (stop == 0 || share == 1) return seconds * (1 / share - 1);
    std::poisson_distribution<int> stops(seconds * (1 / share - 1) / stop);
    return stop * stops(random_);
  }
  /// 200 MB at 10 GB/s, if nothing is slow.
  RateWatch::Work reduced(int host) {
    if (idle.contains(host)) return {};
    const double seconds = 0.02 / machine / of(speeds, host);
    return {200'000, noisy(seconds + waits(host, seconds))};
  }
  RateWatch::Work turns(int host) {
    constexpr double kSeconds = 0.2;
    const double ready = kSeconds / machine + waits(host, kSeconds);
    return {static_cast<int32_t>(1e6 * kSeconds), noisy(ready)};
  }

  const int hosts_;
  const Routes routes_;
  std::normal_distribution<double> noise_;
  std::mt19937_64 random_;
};

}  // namespace q7x2::test
