#include "transport/peer/path_watch.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "transport/peer/silence_clock.h"
#include "transport/quirks/tcp_sockets.h"

namespace q7x2 {
namespace {

bool has_address(const Peer::Watched* path, const IpAddress& address) {
  return path->link().address().find(address.wire_bytes()) != std::string::npos;
}

bool has_port(const Peer::Watched* path, uint16_t port) {
  const std::array<char, 2> bytes{static_cast<char>(port >> 8), static_cast<char>(port)};
  const std::string_view wire(bytes.data(), bytes.size());
  return path->link().address().find(wire) != std::string::npos;
}

/// For the person who may have to change a firewall: which packets pass, and which do not.
std::string why_blocked(const PathSample& connection, bool is_rail) {
  const std::string where =
      "TCP to " + connection.peer.text() + (is_rail ? " on the private link" : "");
  return "the path for data to it is blocked (firewall or MTU?), its host answers" +
         (connection.is_connecting ? ": a firewall drops " + where + ", which UCX listens at"
                                   : ": " + where + " is not acknowledged");
}

}  // namespace

std::vector<PathWatch::Blocked> PathWatch::poll(
    TimePoint now, const std::vector<int>& workers, const Paths& paths,
    const std::function<bool(const Peer::Watched*)>& answers) {
  const auto address_answers = [&](const IpAddress& address) {
    return std::ranges::any_of(
        paths, [&](const auto* path) { return has_address(path, address) && answers(path); });
  };
  std::vector<Blocked> blocked;
  for (const PathSample& connection : sample(now, workers, address_answers)) {
    for (Peer::Watched* path : users_of(connection, paths)) {
      blocked.push_back({path, why_blocked(connection, path->is_rail)});
    }
  }
  return blocked;
}

std::vector<PathSample> PathWatch::sample(TimePoint now, const std::vector<int>& workers,
                                          const std::function<bool(const IpAddress&)>& answers) {
  const PathClock::Duration period = SilenceClock::period(limit_);
  next_poll_ = now + period;
  connections_.clear();
  std::vector<PathSample> blocked;
  std::map<uint64_t, PathClock> clocks;
  for (const int worker : workers) {
    for (const auto& [inode, sample] : path_samples(worker)) {
      const auto known = clocks_.find(inode);
      PathClock& clock =
          clocks.emplace(inode, known == clocks_.end() ? PathClock(limit_) : known->second)
              .first->second;
      if (clock.look(sample, now, period, [&] { return answers(sample.peer.address); })) {
        blocked.push_back(sample);
      }
      connections_.push_back(sample);
    }
  }
  clocks_ = std::move(clocks);
  return blocked;
}

PathWatch::Paths PathWatch::users_of(const PathSample& connection, const Paths& paths) const {
  Paths users;
  std::ranges::copy_if(paths, std::back_inserter(users), [&](const auto* path) {
    return has_address(path, connection.peer.address);
  });
  const auto listens_there = [&](const auto* user) { return has_port(user, connection.peer.port); };
  const auto has_opened_another = [&](const auto* user) {
    return std::ranges::any_of(connections_, [&](const PathSample& each) {
      return each.peer.address == connection.peer.address && has_port(user, each.peer.port);
    });
  };
  if (std::ranges::any_of(users, listens_there)) {
    std::erase_if(users, std::not_fn(listens_there));
  } else if (!std::ranges::all_of(users, has_opened_another)) {
    std::erase_if(users, has_opened_another);
  }
  return users;
}

}  // namespace q7x2
