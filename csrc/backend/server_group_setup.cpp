#include "backend/server_group_setup.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend/c10d_store.h"
#include "base/log.h"
#include "executor/collective/plan_call.h"
#include "transport/bootstrap/peer_address.h"
#include "transport/bootstrap/peer_bootstrap.h"
#include "transport/bootstrap/wire_up.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// Timeout of the store for a rank 0 of a later group: the store may be gone with its process.
constexpr std::chrono::milliseconds kStoreOfSuccessor{500};

std::vector<PeerInfo> peer_infos_of_processes(const Group& group) {
  std::vector<PeerInfo> peer_infos;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    peer_infos.push_back(without_group(group.membership().peer_info(rank)));
  }
  return peer_infos;
}

std::vector<PeerInfo> members_of(const ServerMeeting& meeting) {
  std::vector<PeerInfo> members = meeting.ranks;
  for (const ServerMeeting::Server& server : meeting.servers) members.push_back(server.peer_info);
  return members;
}

/// Whether this process has met the other one, and knows that it has ended.
bool has_ended(uint64_t process) {
  const std::shared_ptr<Runtime> runtime = Runtime::existing();
  if (!runtime) return false;
  Locked locked(runtime->lock());
  const Peer* const peer = runtime->peers().find(locked, process);
  return peer != nullptr && peer->life.has_ended();
}

}  // namespace

std::shared_ptr<Group> make_server_group(
    Runtime& runtime, const ServerMeeting& meeting, std::chrono::milliseconds timeout,
    const std::function<void()>& check_interrupt,
    const std::function<void(const std::shared_ptr<Group>&)>& prepare) {
  const std::string name = meeting.group + " with servers";
  const std::vector<PeerInfo> members = members_of(meeting);
  const auto describe = [&](int member) {
    const auto ranks = static_cast<int>(meeting.ranks.size());
    const std::string who =
        member < ranks
            ? "rank " + std::to_string(member)
            : "server '" + meeting.servers[static_cast<size_t>(member - ranks)].name + "'";
    return who + " (" + describe_process(members[static_cast<size_t>(member)]) + ")";
  };
  PeerBootstrap bootstrap(runtime, {.title = "the group '" + name + "'",
                                    .scope = "servers",
                                    .name = meeting.key,
                                    .members = members,
                                    .list = "its ranks and servers",
                                    .timeout = timeout,
                                    .check_interrupt = check_interrupt,
                                    .describe = describe});
  std::shared_ptr<Group> group;
  bootstrap.run(
      [&] {
        group = make_group(runtime, bootstrap.rank(), bootstrap.size(), name, bootstrap,
                           {.announcement = announcement_of_process()});
        prepare(group);
      },
      [&](const Error& error) {
        if (group) group->abort(error);
      });
  return group;
}

bool awaits_servers(KeyStore& root) {
  return ServerRoll(root, JobSecret::of_environment()).is_used();
}

bool may_await_servers(KeyStore& root, const std::string& group) {
  try {
    return awaits_servers(root);
  } catch (const Error& error) {
    log(Level::kInfo, "the group '" + group + "' has no servers: " + error.what());
    return false;
  }
}

// A job without servers makes one call to the store here.
ServerMeeting invite_servers(Group& group, KeyStore& root) {
  ServerRoll roll(root, group.runtime().secret());
  return roll
      .invite(group.membership().name(), peer_infos_of_processes(group),
              {.warn = [](const std::string& sentence) { TORCH_WARN("q7x2: ", sentence); },
               .attend = [&] { group.check(); },
               .has_ended = has_ended})
      .value_or(ServerMeeting{});
}

ServerMeeting invite_servers(Group& group, const c10::intrusive_ptr<c10d::Store>& store) {
  try {
    C10dStore root(root_of(store), kStoreOfSuccessor, [&] { group.check(); });
    return invite_servers(group, root);
  } catch (const Error& error) {
    log(Level::kInfo,
        "the group '" + group.membership().name() + "' has no servers: " + error.what());
    return {};
  }
}

// Rank 0 tells the other ranks which servers they meet. At the end all ranks agree on whether the
// server group was made. A failure of servers does not fail the group itself.
std::shared_ptr<ServerGroup> meet_servers(Group& group, Bootstrap& bootstrap, ServerMeeting invited,
                                          Fabric surveyed, SurveyOptions options,
                                          const std::string& algorithms) {
  const auto check = [&] { group.check(); };
  const bool is_first = group.rank() == 0;
  options.timeout = std::min(options.timeout, kServerGroupTimeout);
  invited.ranks.clear();  // all ranks already have the peer infos of ranks
  const std::string told =
      bootstrap.exchange("servers", is_first ? invited.encode() : "", check).front();
  ServerMeeting meeting = ServerMeeting::decode(told);
  if (meeting.servers.empty()) return nullptr;
  meeting.ranks = peer_infos_of_processes(group);
  if (surveyed.servers.empty()) {
    for (const std::string& name : meeting.names())
      surveyed.servers.push_back(assumed_server(name));
  }
  std::shared_ptr<ServerGroup> servers;
  std::string failure;
  try {
    const auto prepare = [&](const std::shared_ptr<Group>& all) {
      const int ranks = group.world_size();
      auto fabric = survey_servers(all, ranks, is_first ? &surveyed : nullptr, options);
      auto planner = std::make_shared<Planner>(group.rank(), std::move(fabric), algorithms,
                                               plan_files_of_environment());
      servers =
          std::make_shared<ServerGroup>(all, ranks, std::move(planner), environment_of_plans());
    };
    make_server_group(group.runtime(), meeting, options.timeout, Runtime::check_interrupt, prepare);
  } catch (const Error& error) {
    servers.reset();
    failure = error.what();
    if (failure.empty()) failure = to_string(error.code());
  }
  for (const std::string& said : bootstrap.exchange("servers made", failure, check)) {
    if (said.empty()) continue;
    if (is_first) {
      TORCH_WARN("q7x2: the group '", group.membership().name(),
                 "' goes on without servers: ", said);
    }
    if (servers) servers->group().leave();
    return nullptr;
  }
  group.accompany(servers->group_pointer());
  return servers;
}

}  // namespace q7x2
