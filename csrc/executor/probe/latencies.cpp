#include "executor/probe/latencies.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "executor/probe/probe_tasks.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

constexpr uint32_t kPing = 13;  // channels; probe_tasks.cpp has those before
constexpr uint32_t kPong = 14;

// The first ping may have to connect, and does not count.
constexpr size_t kWarmUp = 1;
constexpr size_t kMostPings = 12;

class LatencyTask final : public Conversation {
 public:
  LatencyTask(std::shared_ptr<Group> group, int peer, bool asks, int far_pings,
              std::chrono::milliseconds timeout)
      : Conversation(std::move(group), "latency", peer, Wire::kShared, /*tiny=*/true, timeout),
        asks_(asks),
        far_pings_(kWarmUp + static_cast<size_t>(far_pings)) {}

  /// Only at the end that asks, and only after `done`.
  double shortest() const { return *std::min_element(counted(), round_trips_.end()); }
  double spread() const {
    return (*std::max_element(counted(), round_trips_.end()) - shortest()) /
           std::max(shortest(), 1e-9);
  }

 private:
  std::vector<double>::const_iterator counted() const { return round_trips_.begin() + kWarmUp; }

  void begin(Locked& locked) override {
    if (asks_) {
      ask(locked);
    } else {
      receive(locked, kPing, &heard_, sizeof(heard_));
    }
  }

  void ask(Locked& locked) {
    receive(locked, kPong, nullptr, 0);
    more_follow_ = round_trips_.size() + 1 < pings() ? 1 : 0;
    asked_at_ = Clock::now();
    send(locked, kPing, &more_follow_, sizeof(more_follow_));
  }

  size_t pings() const {
    const bool is_known = round_trips_.size() > kWarmUp;
    return is_known && shortest() > kLongRoundTrip ? far_pings_ : kMostPings;
  }

  void received(Locked& locked, uint32_t, size_t) override {
    if (!asks_) {
      if (heard_ != 0) receive(locked, kPing, &heard_, sizeof(heard_));
      send(locked, kPong, nullptr, 0);
      return;
    }
    round_trips_.push_back(std::chrono::duration<double>(Clock::now() - asked_at_).count());
    if (more_follow_ != 0) ask(locked);
  }

  const bool asks_;
  const size_t far_pings_;
  TimePoint asked_at_;
  std::vector<double> round_trips_;
  uint64_t more_follow_ = 0;
  uint64_t heard_ = 0;
};

static_assert(std::is_trivially_copyable_v<Latency>);

}  // namespace

std::vector<Latency> measure_latencies(const std::shared_ptr<Group>& group,
                                       const std::vector<int>& leaders,
                                       const std::vector<std::pair<int, int>>& pairs, int far_pings,
                                       std::chrono::milliseconds timeout) {
  const auto leader = [&](int host) { return leaders[static_cast<size_t>(host)]; };
  std::vector<std::pair<std::shared_ptr<LatencyTask>, Latency>> talks;
  for (const auto& [a, b] : pairs) {
    const bool asks = leader(a) == group->rank();
    if (!asks && leader(b) != group->rank()) continue;
    const int peer = leader(asks ? b : a);
    talks.emplace_back(std::make_shared<LatencyTask>(group, peer, asks, far_pings, timeout),
                       Latency{.a = asks ? a : -1, .b = b});
    group->runtime().submit(talks.back().first, /*caller_waits=*/false);
  }
  std::vector<Latency> found;
  for (auto& [task, latency] : talks) {
    group->runtime().wait(*task, TimePoint::max());
    if (task->error()) throw Error(*task->error());
    if (latency.a < 0) continue;
    latency.round_trip = task->shortest();
    latency.spread = task->spread();
    found.push_back(latency);
  }
  return found;
}

bool take_long(const std::vector<Latency>& latencies) {
  return std::ranges::any_of(latencies,
                             [](const Latency& each) { return each.round_trip > kLongRoundTrip; });
}

std::string encode_latencies(const std::vector<Latency>& latencies) {
  return {reinterpret_cast<const char*>(latencies.data()), latencies.size() * sizeof(Latency)};
}

std::vector<Latency> decode_latencies(const std::string& bytes, int hosts) {
  std::vector<Latency> latencies(bytes.size() / sizeof(Latency));
  if (!latencies.empty())
    std::memcpy(latencies.data(), bytes.data(), latencies.size() * sizeof(Latency));
  const auto is_valid = [hosts](const Latency& each) {
    return each.a >= 0 && each.a < each.b && each.b < hosts && std::isfinite(each.round_trip) &&
           each.round_trip > 0 && std::isfinite(each.spread) && each.spread >= 0;
  };
  if (bytes.size() % sizeof(Latency) != 0 || !std::ranges::all_of(latencies, is_valid)) {
    throw Error(ErrorCode::kMismatch, "a host hands in latencies that cannot be");
  }
  return latencies;
}

}  // namespace q7x2
