// One direction of a line between two sites: its settings, its queues, and what chance does.
//
// What happens to a packet by chance depends on the seed, the line and the packet's number only.
#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

namespace wire {

using Nanoseconds = int64_t;

constexpr size_t kManyFlows = 1 << 16;
// A reordered packet is held back by a quarter of the delay, and at least by this.
constexpr double kLeastHold = 1e6;

/// The mixing function of SplitMix64.
inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Protocol, addresses and ports.
inline uint64_t flow_of(std::string_view packet) {
  const bool is_v4 = (packet[0] & 0xf0) == 0x40;
  const size_t ports = is_v4 ? 4 * (packet[0] & 0xf) : 40;
  const char protocol = packet[is_v4 ? 9 : 6];
  std::string key(1, protocol);
  key += is_v4 ? packet.substr(12, 8) : packet.substr(8, 32);
  if ((protocol == IPPROTO_TCP || protocol == IPPROTO_UDP) && packet.size() >= ports + 4) {
    key += packet.substr(ports, 4);
  }
  return std::hash<std::string>()(key);
}

enum class Chance : uint64_t { kLoss, kJitter, kReorder, kDuplicate };

struct Line {
  // Settings. Times are nanoseconds, rates bits per second, the rest shares.
  double rate = 0, flow_rate = 0, delay = 0, jitter = 0, queue = 0;
  double loss = 0, reorder = 0, duplicate = 0, cut = 0;
  double up = 0, down = 0;  // it flaps if `down` is not 0
  // State.
  uint64_t seed = 0;
  Nanoseconds flaps_since = 0;
  Nanoseconds is_free_at = 0;  // the last bit of what is queued has left
  Nanoseconds last_arrival = 0;
  std::unordered_map<uint64_t, Nanoseconds> flow_is_free_at;
  // Counters of packets.
  uint64_t entered = 0, delivered = 0, delivered_bytes = 0, lost = 0, cut_off = 0, overflowed = 0;
  uint64_t reordered = 0, duplicated = 0, refused = 0;

  bool is_down(Nanoseconds time) const {
    const double phase = std::fmod(static_cast<double>(time - flaps_since), up + down);
    return cut > 0 || (down > 0 && phase >= up);
  }
  /// The queue that all packets share.
  bool waits_for_line(size_t size, Nanoseconds& time) {
    return rate == 0 || waits(is_free_at, rate, size, time);
  }
  /// The queue of a flow.
  bool waits_for_flow(std::string_view packet, Nanoseconds& time) {
    if (flow_is_free_at.size() > kManyFlows) {
      std::erase_if(flow_is_free_at, [&](auto& flow) { return flow.second < time; });
    }
    return waits(flow_is_free_at[flow_of(packet)], flow_rate, packet.size(), time);
  }
  /// When a packet that leaves the queue at `time` arrives.
  Nanoseconds arrival(uint64_t number, Nanoseconds time) {
    time += static_cast<Nanoseconds>(delay + jitter * draw(number, Chance::kJitter));
    if (draw(number, Chance::kReorder) >= reorder) {
      return last_arrival = std::max(time, last_arrival);
    }
    ++reordered;
    return time + static_cast<Nanoseconds>(std::max(delay / 4, kLeastHold));
  }
  bool loses(uint64_t number) const { return draw(number, Chance::kLoss) < loss; }
  bool doubles(uint64_t number) const { return draw(number, Chance::kDuplicate) < duplicate; }

 private:
  /// Moves `time` to when the packet has left a queue. False if the queue is too long.
  bool waits(Nanoseconds& is_free, double bits_per_second, size_t size, Nanoseconds& time) {
    const Nanoseconds begin = std::max(is_free, time);
    if (static_cast<double>(begin - time) > queue) {
      ++overflowed;
      return false;
    }
    time = is_free =
        begin + static_cast<Nanoseconds>(8e9 * static_cast<double>(size) / bits_per_second);
    return true;
  }
  /// From 0 to 1, for a packet by its number.
  double draw(uint64_t number, Chance chance) const {
    const uint64_t bits = mixed(mixed(seed + number) + static_cast<uint64_t>(chance));
    return static_cast<double>(bits >> 11) * 0x1p-53;
  }
};

inline const std::map<std::string, double Line::*> kSettings = {
    {"rate", &Line::rate},       {"flow_rate", &Line::flow_rate},
    {"delay", &Line::delay},     {"jitter", &Line::jitter},
    {"queue", &Line::queue},     {"loss", &Line::loss},
    {"reorder", &Line::reorder}, {"duplicate", &Line::duplicate},
    {"cut", &Line::cut},         {"up", &Line::up},
    {"down", &Line::down}};
inline const std::map<std::string, uint64_t Line::*> kCounters = {
    {"entered", &Line::entered},     {"delivered", &Line::delivered},
    {"lost", &Line::lost},           {"delivered_bytes", &Line::delivered_bytes},
    {"cut_off", &Line::cut_off},     {"overflowed", &Line::overflowed},
    {"reordered", &Line::reordered}, {"duplicated", &Line::duplicated},
    {"refused", &Line::refused}};

}  // namespace wire
