#include "executor/probe/latencies.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "transport/net/connection_attempt.h"

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;

// A packet may be lost, which costs a second, and a busy kernel may be late. So hosts that do not
// seem near have several attempts, this far apart, and the shortest counts.
constexpr int kAttempts = 3;
constexpr std::chrono::milliseconds kApart{15};
constexpr int kNap = 5;  // milliseconds
// A host that has not answered within this time does not answer at all.
constexpr std::chrono::milliseconds kPatience{3000};
constexpr double kNever = std::numeric_limits<double>::infinity();

/// The duration of a handshake in seconds, as the kernel has measured it. Infinite: it has failed.
double duration_of(const PrivateSocket& socket, Attempt end) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  const bool is_made =
      end == Attempt::kMade && ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
  return is_made ? 1e-6 * std::max(info.tcpi_rtt, uint32_t{1}) : kNever;
}

/// The handshakes of one host with others.
class Handshakes {
 public:
  void add(int host, const IpEndpoint& target) { others_.push_back({host, target}); }

  /// Whether no handshake can make a difference any more.
  bool are_over(Clock::time_point now) const {
    return std::ranges::all_of(others_, [&](const Other& each) {
      if (each.shortest <= kLongRoundTrip) return true;
      if (attempts_ < kAttempts) return false;
      return each.open == 0 ||
             std::chrono::duration<double>(now - last_).count() > 2 * each.shortest;
    });
  }
  void begin_more(Clock::time_point now) {
    if (attempts_ == kAttempts || now < last_ + kApart) return;
    ++attempts_;
    last_ = now;
    for (Other& each : others_) {
      if (each.shortest <= kLongRoundTrip) continue;
      PrivateSocket socket = start_connecting(each.target);
      if (!socket.is_valid()) continue;
      open_.emplace_back(&each, std::move(socket));
      ++each.open;
    }
  }
  /// Waits for a while, and takes the handshakes that have ended.
  void wait() {
    std::vector<pollfd> entries;
    for (const auto& [other, socket] : open_) entries.push_back({socket, POLLOUT, 0});
    ::poll(entries.data(), entries.size(), kNap);
    std::erase_if(open_, [&](const auto& each) {
      const Attempt end = outcome(each.second);
      if (end == Attempt::kPending) return false;
      each.first->shortest = std::min(each.first->shortest, duration_of(each.second, end));
      --each.first->open;
      return true;
    });
  }
  std::vector<Latency> found(int host) const {
    std::vector<Latency> found;
    for (const Other& each : others_) {
      if (each.shortest < kNever) found.push_back({host, each.host, each.shortest});
    }
    return found;
  }

 private:
  struct Other {
    int host;
    IpEndpoint target;
    double shortest = kNever;  // seconds
    int open = 0;              // number of handshakes that have not ended
  };

  std::deque<Other> others_;
  std::vector<std::pair<Other*, PrivateSocket>> open_;
  int attempts_ = 0;
  Clock::time_point last_{};
};

static_assert(std::is_trivially_copyable_v<Latency>);

}  // namespace

std::vector<Latency> measure_latencies(const std::vector<PeerInfo>& leaders, int host,
                                       const std::vector<std::pair<int, int>>& pairs,
                                       const std::function<void()>& check) {
  Handshakes handshakes;
  for (const auto& [a, b] : pairs) {
    const PeerInfo& other = leaders[static_cast<size_t>(b)];
    const bool is_reached = !is_nat_between(leaders[static_cast<size_t>(a)], other);
    if (a != host || other.heartbeat_port == 0 || !is_reached) continue;
    handshakes.add(b, {other.heartbeat_address, other.heartbeat_port});
  }
  const auto start = Clock::now();
  for (auto now = start; now < start + kPatience && !handshakes.are_over(now); now = Clock::now()) {
    handshakes.begin_more(now);
    handshakes.wait();
    check();
  }
  return handshakes.found(host);
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
           each.round_trip > 0;
  };
  if (bytes.size() % sizeof(Latency) != 0 || !std::ranges::all_of(latencies, is_valid)) {
    throw Error(ErrorCode::kMismatch, "a host hands in latencies that cannot be");
  }
  return latencies;
}

}  // namespace q7x2
