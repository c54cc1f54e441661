// How the members of a server group (servers/server_group.h) meet: the ranks of a new group, and
// the servers that rank 0 has invited. All of them know each other's peer infos then, and need no
// store (transport/bootstrap/peer_bootstrap.h).
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "transport/bootstrap/server_roll.h"
#include "transport/group/group.h"

namespace q7x2 {

/// The longest that the members wait for each other.
inline constexpr std::chrono::milliseconds kServerGroupTimeout{10'000};

/// Meets all other members, and runs `prepare` before anybody goes on. All members call it.
/// `check_interrupt`: called now and then, may throw. Throws what kept any of them from it.
std::shared_ptr<Group> make_server_group(
    Runtime& runtime, const ServerMeeting& meeting, std::chrono::milliseconds timeout,
    const std::function<void()>& check_interrupt,
    const std::function<void(const std::shared_ptr<Group>&)>& prepare);

}  // namespace q7x2
