// Options of bootstraps among peers, and how they fail, for their tests.
#pragma once

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slowdown.h"
#include "transport/bootstrap/peer_bootstrap.h"

namespace q7x2::test {

inline constexpr std::chrono::milliseconds kPatience{15'000 * kSlowdown};
inline const auto kNoCheck = [] {};

inline PeerBootstrap::Options options(std::vector<PeerInfo> members, const std::string& uuid,
                                      std::chrono::milliseconds timeout = kPatience) {
  std::string list = "a list of " + std::to_string(members.size());
  return {.title = "bootstrap '" + uuid + "'",
          .scope = "test",
          .name = uuid,
          .members = std::move(members),
          .list = std::move(list),
          .timeout = timeout};
}

/// What `body` fails with, after telling the others.
inline Error failure(PeerBootstrap& bootstrap, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    bootstrap.fail(error);
    return error;
  }
  throw std::runtime_error("succeeded, expected an error");
}

/// The same name may come again.
inline PeerBootstrap::Options repeatable(std::vector<PeerInfo> members,
                                         std::chrono::milliseconds timeout = kPatience) {
  PeerBootstrap::Options named = options(std::move(members), "a name", timeout);
  named.is_repeatable = true;
  return named;
}

}  // namespace q7x2::test
