#include "plan/choose/reacting.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "fabric/routes.h"
#include "plan/choose/publication.h"
#include "plan/choose/schedule_search.h"
#include "plan/cost/network.h"

namespace q7x2 {
namespace {

/// Between two hosts there is one route per direction, so no other Plan can avoid it.
constexpr int kFewestHosts = 3;
/// A rate sample carries 8 bytes for each pair of hosts.
constexpr int kMostHosts = 64;
/// Shorter calls are not preceded by a rate sample.
constexpr size_t kLongCall = size_t{1} << 20;
constexpr double kSecondsBetweenLooks = 0.1;
constexpr double kLeastBetweenLooks = 4e6;   // bytes
constexpr double kMostBetweenLooks = 256e6;  // bytes
constexpr size_t kMostEditions = 8;
constexpr size_t kAlignment = 64;

/// The beginning of a rate sample's message. Rank 0 fills it in, the others contribute zeros.
struct Header {
  int32_t now = 0;    ///< milliseconds
  int32_t pause = 0;  ///< milliseconds; 0: rank 0 does not react
};

size_t bytes_for(int hosts) {
  const size_t work = RateWatch::Layout{hosts}.size() * sizeof(RateWatch::Work);
  const size_t bytes = std::max(sizeof(Header) + work, Publication::kBytes);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Wiring wiring_of(const Fabric& fabric) {
  Wiring wiring;
  for (const Fabric::Host& host : fabric.hosts) wiring.rack_of.push_back(host.rack);
  for (const Fabric::Link& link : fabric.links) {
    wiring.linked.insert({{link.a, link.b}, {link.b, link.a}});
  }
  const auto hosts = static_cast<int>(fabric.hosts.size());
  if (hosts > kMostHosts) return wiring;
  const Routes routes(fabric);
  for (int from = 0; from < hosts; ++from) {
    for (int to = 0; to < hosts; ++to) {
      const double rate = from == to ? 0 : routes.between_hosts(from, to).rate;
      wiring.promised.push_back(std::isfinite(rate) ? static_cast<int64_t>(rate / 1024) : 0);
    }
  }
  return wiring;
}

/// Clamps a number so that the sum of all ranks of a host does not overflow.
int32_t number_that_adds_up(int64_t number) {
  constexpr int64_t kMost = 1 << 24;
  return static_cast<int32_t>(std::clamp<int64_t>(number, 0, kMost));
}

}  // namespace

Reacting::Reacting(std::shared_ptr<Planner> planner, int rank, std::chrono::milliseconds pause)
    : rank_(rank), pause_(pause), measured_(planner->fabric()), watch_(wiring_of(*measured_)) {
  editions_.push_back({0, std::move(planner), "", {}});
}

uint64_t Reacting::calls_between_rate_samples(const CallShape& shape) const {
  const auto hosts = static_cast<int>(measured_->hosts.size());
  if (hosts < kFewestHosts || hosts > kMostHosts) return 0;
  size_t bytes = size_class(shape.bytes);
  if (!is_flat(shape.collective)) bytes *= static_cast<size_t>(measured_->world_size());
  if (bytes < kLongCall) return 0;
  double slowest = HUGE_VAL;
  for (int host = 0; host < hosts; ++host) {
    slowest = std::min(slowest, rate_of_host(*measured_, host));
  }
  const double between =
      std::clamp(slowest * kSecondsBetweenLooks, kLeastBetweenLooks, kMostBetweenLooks);
  return static_cast<uint64_t>(std::max(between / static_cast<double>(bytes), 1.0));
}

size_t Reacting::bytes() const {
  return bytes_for(static_cast<int>(measured_->hosts.size()));
}

size_t Reacting::most_bytes(int world_size) {
  return bytes_for(std::min(world_size, kMostHosts));
}

void Reacting::write(std::span<std::byte> message, const Counts& counts) {
  std::ranges::fill(message, std::byte{0});
  if (rank_ == 0) {
    const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - began_);
    const Header header{static_cast<int32_t>(now.count()), static_cast<int32_t>(pause_.count())};
    std::memcpy(message.data(), &header, sizeof(header));
  }
  const RateWatch::Layout layout{static_cast<int>(measured_->hosts.size())};
  const auto put = [&](size_t index, int64_t amount, int64_t microseconds) {
    const RateWatch::Work work{number_that_adds_up(amount), number_that_adds_up(microseconds)};
    std::memcpy(message.data() + sizeof(Header) + index * sizeof(work), &work, sizeof(work));
  };
  const int own = measured_->host_of[static_cast<size_t>(rank_)];
  for (const auto& [way, sent] : links_.take(counts.connections)) {
    // Collectives use a private link if there is one.
    if (way.host == own || way.is_private != watch_.wiring().is_linked(own, way.host)) continue;
    put(layout.sent(own, way.host), static_cast<int64_t>(sent.bytes / 1024),
        static_cast<int64_t>(sent.busy));
  }
  put(layout.reduced(own), static_cast<int64_t>(counts.reductions.bytes / 1024),
      counts.reductions.nanoseconds / 1000);
  const TurnMeter::Turns turns = turns_.take(counts.turns);
  put(layout.turns(own), turns.ran / 1000, (turns.ran + turns.waited) / 1000);
}

bool Reacting::read(std::span<const std::byte> message, uint64_t pattern) {
  Header header;
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.pause <= 0) {
    is_on_ = false;
    return false;
  }
  const RateWatch::Layout layout{static_cast<int>(measured_->hosts.size())};
  std::vector<RateWatch::Work> work(layout.size());
  std::memcpy(work.data(), message.data() + sizeof(Header), work.size() * sizeof(work[0]));
  const RateFactors before = watch_.factors();
  if (!watch_.sample(pattern, header.now, header.pause, work)) return false;
  auto fabric = std::make_shared<Fabric>(with_rate_changes(*measured_, watch_.factors()));
  watch_.rewire(wiring_of(*fabric));
  const std::string reason =
      rate_changes_text(*measured_, before, watch_.factors(), watch_.forgotten());
  if (!watch_.factors().empty()) fabric->made.note = reason;
  const std::lock_guard lock(mutex_);
  const Edition& last = editions_.back();
  editions_.push_back(
      {last.epoch + 1, last.planner->with(std::move(fabric)), reason, watch_.factors()});
  if (editions_.size() > kMostEditions) editions_.pop_front();
  return true;
}

uint64_t Reacting::epoch() const {
  const std::lock_guard lock(mutex_);
  return editions_.back().epoch;
}

const Reacting::Edition& Reacting::edition(uint64_t epoch) const {
  const auto found = std::ranges::find(editions_, epoch, &Edition::epoch);
  if (found == editions_.end()) {
    throw Error(ErrorCode::kInternal,
                "there is no Fabric of epoch " + std::to_string(epoch) + " any more");
  }
  return *found;
}

std::shared_ptr<Planner> Reacting::planner(uint64_t epoch) const {
  const std::lock_guard lock(mutex_);
  return edition(epoch).planner;
}

std::optional<RateFactors> Reacting::factors_of(uint64_t epoch) const {
  if (epoch == 0) return RateFactors{};
  const auto found = std::ranges::find(editions_, epoch, &Edition::epoch);
  if (found == editions_.end()) return std::nullopt;
  return found->factors;
}

bool Reacting::have_same_rates(uint64_t one, uint64_t other) const {
  const std::lock_guard lock(mutex_);
  const std::optional<RateFactors> factors = factors_of(one);
  return factors && factors == factors_of(other);
}

std::string Reacting::reason(uint64_t epoch) const {
  const std::lock_guard lock(mutex_);
  return edition(epoch).reason;
}

}  // namespace q7x2
