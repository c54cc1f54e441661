// Two lanes in one process, with a path between them, and what happened to their requests.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "flaky_proxy.h"
#include "transport/stream/stream_lane.h"

namespace q7x2::stream_test {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

inline Identity identity(uint64_t process) {
  Identity it{process, {}};
  it.key.fill(static_cast<std::byte>(process));
  return it;
}

struct Outcome {
  StreamStatus status = StreamStatus::kOk;
  size_t length = 0;
  uint64_t tag = 0;
};

/// One process: a lane, and its requests by their numbers.
struct Side {
  explicit Side(uint64_t process, StreamOptions options = {},
                const JobSecret& secret = JobSecret("a secret of tests"))
      : self(identity(process)),
        lane(std::move(options), self, secret,
             [this](void* request, StreamStatus status, size_t length, uint64_t tag) {
               outcomes.emplace(reinterpret_cast<uintptr_t>(request), Outcome{status, length, tag});
             }) {
    port = lane.listen({kLoopback});
  }

  static void* request(uint64_t number) { return reinterpret_cast<void*>(number); }
  uint64_t send(const Bytes& data, uint64_t tag) {
    lane.send(*path, request(++last), tag, data.data(), data.size());
    return last;
  }
  uint64_t receive(Bytes& data, uint64_t tag, uint64_t mask = ~uint64_t{0}) {
    lane.receive(request(++last), tag, mask, data.data(), data.size());
    return last;
  }
  std::optional<Outcome> outcome(uint64_t number) const {
    const auto found = outcomes.find(number);
    return found == outcomes.end() ? std::nullopt : std::optional(found->second);
  }
  bool is_done(uint64_t number) const { return outcomes.contains(number); }

  const Identity self;
  std::map<uintptr_t, Outcome> outcomes;
  uint64_t last = 0;
  StreamLane lane;
  StreamPath* path = nullptr;
  uint16_t port = 0;
};

/// `a` calls `b`, through a proxy that may damage what passes.
struct Pair {
  explicit Pair(StreamOptions options = {}, uint64_t seed = 1)
      : a(1, options), b(2, options), proxy(b.port, seed) {
    open();
  }

  void open(uint64_t epoch = 7) {
    a.path = &a.lane.open({b.self, epoch, {{kLoopback, proxy.port()}}, /*calls=*/true});
    b.path = &b.lane.open({a.self, epoch, {}, /*calls=*/false});
  }

  void step() {
    a.lane.progress();
    proxy.step();
    b.lane.progress();
  }
  /// False: `condition` has not come true for far too long.
  bool run_until(const std::function<bool()>& condition) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      step();
    }
    return true;
  }

  Side a;
  Side b;
  FlakyProxy proxy;
};

}  // namespace q7x2::stream_test
