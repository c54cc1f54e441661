// Makes a server group (servers/server_group.h). Its members are the ranks of a new group, and the
// servers that rank 0 has invited. They already know each other's peer infos, and need no store
// (transport/bootstrap/peer_bootstrap.h).
//
// A group that is made without a store has no servers if the job's store does not answer.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "backend/torch_compat.h"
#include "executor/probe/survey.h"
#include "fabric/fabric.h"
#include "servers/server_group.h"
#include "transport/bootstrap/bootstrap.h"
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

// On rank 0 of a group of a job.

/// Whether servers of the job may have to be invited.
bool awaits_servers(KeyStore& root);
/// The same for a group that is made without a store; `group`: its name.
bool may_await_servers(KeyStore& root, const std::string& group);
/// Invites the servers of the job that have announced themselves.
ServerMeeting invite_servers(Group& group, KeyStore& root);
/// The same for a group that is made without a store.
ServerMeeting invite_servers(Group& group, const c10::intrusive_ptr<c10d::Store>& store);

/// Makes the server group of `group` if rank 0 has invited servers; otherwise returns null. All
/// ranks call it. `invited`: on rank 0. `surveyed`: the group's Fabric; servers that are not in it
/// get the default rates. `algorithms`: the only ones that may be used; empty: all.
std::shared_ptr<ServerGroup> meet_servers(Group& group, Bootstrap& bootstrap, ServerMeeting invited,
                                          Fabric surveyed, SurveyOptions options,
                                          const std::string& algorithms);

}  // namespace q7x2
