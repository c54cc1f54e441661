#include "executor/probe/background_probe.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/quiet_thread.h"
#include "fabric/catalogue.h"
#include "transport/bootstrap/peer_address.h"
#include "transport/bootstrap/peer_bootstrap.h"
#include "transport/bootstrap/wire_up.h"
#include "transport/run/group_facts.h"

namespace q7x2 {
namespace {

// Programs make more groups and compare a few figures right after their first group.
constexpr std::chrono::milliseconds kPause{1000};
// Within which all ranks begin.
constexpr std::chrono::milliseconds kPatience{30'000};
// How long a wait does not notice that it is pointless.
constexpr std::chrono::milliseconds kNap{20};

// A call is long if its bytes take more than a fifth of the longest latency at 100 Mbit/s.
constexpr double kSlowRate = 12.5e6;  // bytes per second
constexpr double kShare = 0.2;
constexpr size_t kLeastLong = size_t{16} << 10;

/// All of this process. It lives as long as the process does.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<BackgroundProbe>> probes;

  static Registry& instance() {
    static Registry* const registry = [] {
      // A forked child has none: a fork copies no threads, and maybe a mutex that is held.
      ::pthread_atfork(nullptr, nullptr, [] { new (&instance()) Registry; });
      return new Registry;
    }();
    return *registry;
  }

  std::vector<std::shared_ptr<BackgroundProbe>> living() {
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<std::shared_ptr<BackgroundProbe>> living;
    for (const auto& each : probes) {
      if (std::shared_ptr<BackgroundProbe> probe = each.lock()) living.push_back(std::move(probe));
    }
    return living;
  }
};

std::vector<PeerInfo> processes_of(const Group& group) {
  std::vector<PeerInfo> members;
  for (const PeerInfo& each : group.membership().peer_infos()) {
    members.push_back(without_group(each));
  }
  return members;
}

}  // namespace

std::shared_ptr<BackgroundProbe> BackgroundProbe::begin(const Group& group,
                                                        std::shared_ptr<const Fabric> latencies,
                                                        const SurveyOptions& options) {
  std::shared_ptr<BackgroundProbe> probe(new BackgroundProbe(group, std::move(latencies), options));
  Registry& registry = Registry::instance();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  std::erase_if(registry.probes, [](const auto& each) { return each.expired(); });
  registry.probes.push_back(probe);
  return probe;
}

std::shared_ptr<BackgroundProbe> BackgroundProbe::of(const Placement& placement) {
  for (const auto& probe : Registry::instance().living()) {
    if (probe->part(placement)) return probe;
  }
  return nullptr;
}

void BackgroundProbe::stop_all() noexcept {
  for (const auto& probe : Registry::instance().living()) probe->stop();
}

BackgroundProbe::BackgroundProbe(const Group& group, std::shared_ptr<const Fabric> latencies,
                                 const SurveyOptions& options)
    : runtime_(Runtime::instance()),
      name_(group.membership().name()),
      scope_("rates of " + identity_of(group.membership())),
      rank_(group.rank()),
      members_(processes_of(group)),
      latencies_(std::move(latencies)),
      options_([&] {
        SurveyOptions measures = options;
        measures.exchange = nullptr;
        return measures;
      }()),
      thread_(quiet_thread("q7x2-probe", [this] { run(); })) {}

BackgroundProbe::~BackgroundProbe() {
  stop();
}

std::optional<Fabric> BackgroundProbe::part(const Placement& placement) const {
  return placed(*latencies_, placement.host_of, placement.keys, placement.names, false);
}

std::shared_ptr<const Fabric> BackgroundProbe::wait(const std::function<void()>& check) {
  std::unique_lock<std::mutex> lock(mutex_);
  is_wanted_ = true;
  changed_.notify_all();
  while (!is_over_) {
    changed_.wait_for(lock, kNap);
    lock.unlock();
    check();
    lock.lock();
  }
  return found_;
}

std::shared_ptr<const Fabric> BackgroundProbe::found() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return found_;
}

void BackgroundProbe::run() {
  std::shared_ptr<const Fabric> found;
  try {
    if (pause()) found = measure();
  } catch (const std::exception& error) {
    log(Level::kInfo, "the rates of group '" + name_ + "' are not known: " + error.what());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  found_ = std::move(found);
  is_over_ = true;
  changed_.notify_all();
}

bool BackgroundProbe::pause() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, kPause, [this] { return is_wanted_ || shall_end_; });
  return !shall_end_;
}

void BackgroundProbe::check() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (shall_end_) throw Error(ErrorCode::kAborted, "the group has ended");
}

std::shared_ptr<const Fabric> BackgroundProbe::measure() {
  PeerBootstrap bootstrap(*runtime_, {.title = "the probe of group '" + name_ + "'",
                                      .scope = scope_,
                                      .name = "1",
                                      .members = members_,
                                      .list = "the ranks of the group",
                                      .timeout = std::min(options_.timeout, kPatience),
                                      .check_interrupt = [this] { check(); }});
  GroupTerms terms;
  terms.announcement = announcement_of_process();
  std::shared_ptr<Group> group;
  bootstrap.run(
      [&] {
        group = make_group(*runtime_, rank_, static_cast<int>(members_.size()), "probe of " + name_,
                           bootstrap, terms);
      },
      [&](const Error& error) {
        if (group) group->abort(error);
      });
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    group_ = group;
  }
  const auto leave = [&](Group* left) {
    left->leave();
    const std::lock_guard<std::mutex> lock(mutex_);
    group_ = nullptr;
  };
  const std::unique_ptr<Group, decltype(leave)> until_the_end(group.get(), leave);
  check();  // who has ended it before it had the group did not end that
  return survey(group, options_, probe_decision());
}

void BackgroundProbe::stop() noexcept {
  std::shared_ptr<Group> group;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    shall_end_ = true;
    group = group_;
    changed_.notify_all();
  }
  Runtime::run_unlocked([&] {
    if (group) group->leave();
    if (thread_.joinable()) thread_.join();
  });
}

std::optional<Fabric> with_rates(const Fabric& latencies, const Fabric& measured) {
  std::vector<std::string> keys;
  std::vector<std::string> names;
  for (const Fabric::Host& host : latencies.hosts) {
    keys.push_back(host.key);
    names.push_back(host.name);
  }
  std::optional<Fabric> fabric = placed(measured, latencies.host_of, keys, names, false);
  if (!fabric) return fabric;
  fabric->bindings = latencies.bindings;
  for (size_t host = 0; host < fabric->hosts.size(); ++host) {
    fabric->hosts[host].cores = latencies.hosts[host].cores;
  }
  return fabric;
}

size_t least_long_call(const Fabric& latencies) {
  double longest = 0;
  for (const Fabric::Pair& pair : latencies.pairs) longest = std::max(longest, pair.alpha);
  return std::max(kLeastLong, static_cast<size_t>(kShare * longest * kSlowRate));
}

}  // namespace q7x2
