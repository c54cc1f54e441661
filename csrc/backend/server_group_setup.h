// Makes a server group (servers/server_group.h). Its members are the ranks of a new group, and the
// servers that rank 0 has invited. They already know each other's peer infos, and need no store
// (transport/bootstrap/peer_bootstrap.h).
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "transport/bootstrap/server_roll.h"
#include "transport/group/group.h"

namespace q7x2 {

/// The longest time that the members wait for each other.
inline constexpr std::chrono::milliseconds kServerGroupTimeout{10'000};

/// Meets all other members, and runs `prepare` before any of them continues. All members call it.
/// `check_interrupt`: called repeatedly; may throw. Throws the first error of any member.
std::shared_ptr<Group> make_server_group(
    Runtime& runtime, const ServerMeeting& meeting, std::chrono::milliseconds timeout,
    const std::function<void()>& check_interrupt,
    const std::function<void(const std::shared_ptr<Group>&)>& prepare);

}  // namespace q7x2
