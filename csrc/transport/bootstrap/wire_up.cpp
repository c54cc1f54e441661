#include "transport/bootstrap/wire_up.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "transport/bootstrap/expecting_others.h"
#include "transport/bootstrap/gather_tree.h"
#include "transport/bootstrap/known_breaks.h"
#include "transport/bootstrap/network_check.h"
#include "transport/bootstrap/peer_address.h"
#include "transport/group/group.h"
#include "transport/group/group_failure.h"
#include "transport/run/group_facts.h"
#include "transport/run/runtime.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

/// Whether a connection between two of them broke, and one of the two does not know it yet. All
/// ranks say the same.
bool tells_of_breaks(const std::vector<PeerInfo>& peer_infos) {
  std::unordered_map<uint64_t, const PeerInfo*> by_process;
  for (const PeerInfo& peer_info : peer_infos) {
    by_process[peer_info.process] = &peer_info;
  }
  return std::any_of(peer_infos.begin(), peer_infos.end(), [&](const PeerInfo& peer_info) {
    return std::any_of(
        peer_info.renewed.begin(), peer_info.renewed.end(), [&](const auto& connection) {
          const auto other = by_process.find(connection.process);
          return other != by_process.end() &&
                 other->second->connection(peer_info.process).incarnation < connection.incarnation;
        });
  });
}

/// Empty if one of them cannot be read.
std::vector<PeerInfo> decoded(const std::vector<std::string>& peer_infos) {
  std::vector<PeerInfo> all;
  try {
    for (const std::string& bytes : peer_infos) all.push_back(PeerInfo::decode(bytes));
  } catch (const Error&) {
    return {};
  }
  return all;
}

void destroy(Group* group) {
  // The memory that it maps and its connections are the parent's.
  if (!group->runtime().forked()) delete group;
}

}  // namespace

std::shared_ptr<Group> make_group(Runtime& runtime, int rank, int world_size,
                                  const std::string& name, Bootstrap& bootstrap,
                                  const GroupTerms& terms) {
  return WireUp(runtime, rank, world_size, name, bootstrap, terms).run();
}

void connect_all(Group& group) {
  Locked locked(group.runtime().lock());
  group.links().connect_all(locked);
}

void refuse_mixed_encryption(const std::vector<PeerInfo>& peer_infos, const std::string& name) {
  const auto has_lane = [](const PeerInfo& each) { return each.stream_port != 0; };
  const auto first = std::ranges::find_if(peer_infos, has_lane);
  const auto other = std::find_if(first, peer_infos.end(), [&](const PeerInfo& each) {
    return has_lane(each) && each.encrypts_streams != first->encrypts_streams;
  });
  if (other == peer_infos.end()) return;
  throw Error(ErrorCode::kMismatch, "ranks " + std::to_string(first - peer_infos.begin()) +
                                        " and " + std::to_string(other - peer_infos.begin()) +
                                        " of group '" + name +
                                        "' have different Q7X2_ENCRYPT: it must be the same on "
                                        "all ranks");
}

/// Many connections, where they are wanted whatever the latency.
void take_streams(Group& group) {
  Locked locked(group.runtime().lock());
  for (int r = 0; r < group.world_size(); ++r)
    group.links().use_streams(locked, r, /*round_trip=*/0);
}

void set_awaited(Group& group, int rank) {
  Locked locked(group.runtime().lock());
  group.agreement().set_awaited(locked, rank);
}

WireUp::WireUp(Runtime& runtime, int rank, int world_size, const std::string& name,
               Bootstrap& bootstrap, const GroupTerms& terms)
    : runtime_(runtime),
      rank_(rank),
      world_size_(world_size),
      name_(name),
      bootstrap_(bootstrap),
      terms_(terms) {
  if (world_size < 1 || world_size > tag::kMaxRanks || rank < 0 || rank >= world_size) {
    throw Error(ErrorCode::kInvalidArgument,
                "a group needs 1 to " + std::to_string(tag::kMaxRanks) +
                    " ranks and a rank among them; got rank " + std::to_string(rank) + " of " +
                    std::to_string(world_size));
  }
}

WireUp::~WireUp() {
  if (runtime_.forked()) return;
  Locked locked(runtime_.lock());
  if (slot_ >= 0) runtime_.groups().close(locked, slot_, /*ended_late=*/true);
  channel_.reset();  // keys of peers' memory are the worker's
}

std::shared_ptr<Group> WireUp::run() {
  const ExpectingOthers expecting(runtime_);  // its peer info goes out
  mine_ = make_peer_info();
  const Bootstrap::Hooks hooks{.prepare = [this](const auto& all) { admit(all); },
                               .decide = [this](const auto& all) { return decide(all); }};
  Bootstrap::Met met = bootstrap_.meet(mine_.encode(), hooks);
  std::vector<PeerInfo> peer_infos = verified(met.all);
  terms_.learn(std::move(met.decision));
  refuse_without_network(peer_infos, rank_, name_);
  refuse_tcp_after_fork(peer_infos, rank_);
  Membership members = meet(peer_infos);
  renew_connections(members, std::move(peer_infos));
  // Not under the lock, which it takes when it goes.
  std::shared_ptr<Group> group(
      new Group(runtime_, runtime_.lock(), std::exchange(slot_, -1), std::move(members), begun_),
      destroy);
  take_streams(*group);  // before anything is said in it
  open(*group);
  try {
    share_memory(*group);
    find_private_links(*group);
    log_group(*group);
    if (terms_.eager) {
      connect_all(*group);
    }
  } catch (const std::exception& error) {
    group->abort(failure_of(group->membership(), error));  // others may have it already
    throw;
  }
  return group;
}

void WireUp::open(Group& group) {
  const Membership& members = group.membership();
  {
    Locked locked(runtime_.lock());
    runtime_.groups().open(locked, group.slot(), group);
    // Every rank has a parent in the tree, or children. So whatever rank dies, somebody notices,
    // also if nobody has talked to it.
    std::vector<int> neighbours = children_of(rank_, world_size_, kWatchBranches);
    if (rank_ > 0) neighbours.push_back((rank_ - 1) / kWatchBranches);
    // Nobody can call a process behind NAT that has no port outside. So it calls all others.
    for (int r = 0; r < world_size_; ++r) {
      const PeerInfo& other = members.peer_info(r);
      if (is_nat_between(mine_, other) && stream_addresses(other, mine_).empty()) {
        neighbours.push_back(r);
      }
    }
    for (const int r : neighbours) runtime_.peers().watch(locked, members.peer(r));
    if (runtime_.queue().is_blocked() && members.host_ranks().size() > 1) {
      group.fail(locked, runtime_.queue().error());
    }
  }
  runtime_.parking().wake_driver();
}

// What is wrong with a peer info all ranks say when they verify them.
void WireUp::admit(const std::vector<std::string>& peer_infos) {
  const std::vector<PeerInfo> all = decoded(peer_infos);
  Locked locked(runtime_.lock());
  runtime_.peers().admission().admit(locked, all, mine_.host_key);
}

std::string WireUp::decide(const std::vector<std::string>& peer_infos) const {
  const std::vector<PeerInfo> all = decoded(peer_infos);
  return terms_.decide && !all.empty() ? terms_.decide(all) : "";
}

// ---- peer infos

PeerInfo WireUp::make_peer_info() {
  learn_of_breaks(runtime_);
  PeerInfo peer_info = peer_info_of_process(runtime_);
  {
    Locked locked(runtime_.lock());
    slot_ = runtime_.groups().reserve(locked);
    peer_info.renewed = runtime_.peers().renew(locked);
  }
  peer_info.slot = static_cast<uint16_t>(slot_);
  peer_info.world_size = static_cast<uint16_t>(world_size_);
  peer_info.algorithms = terms_.algorithms;
  peer_info.attached_hook = terms_.attached_hook;
  peer_info.device_path = terms_.device_path;
  peer_info.announcement = terms_.announcement;
  // Before it is known whether anyone shares this host, since that spares an exchange.
  if (world_size_ > 1 && ShmChannel::is_cheap(runtime_.reactor().context())) {
    channel_ = new_channel(1);
  }
  if (channel_) {
    peer_info.memory = channel_->key();
  }
  return peer_info;
}

std::vector<PeerInfo> WireUp::verified(const std::vector<std::string>& bytes) const {
  if (bytes.size() != static_cast<size_t>(world_size_)) {
    throw Error(ErrorCode::kMismatch, "group '" + name_ + "' of " + std::to_string(world_size_) +
                                          " ranks got " + std::to_string(bytes.size()) +
                                          " peer infos");
  }
  std::vector<PeerInfo> peer_infos;
  peer_infos.reserve(bytes.size());
  for (const std::string& peer_info : bytes) {
    peer_infos.push_back(PeerInfo::decode(peer_info));
    const PeerInfo& last = peer_infos.back();
    if (last.world_size != world_size_ || last.slot >= tag::kMaxGroups) {
      throw Error(ErrorCode::kMismatch, "rank " + std::to_string(peer_infos.size() - 1) +
                                            " of group '" + name_ + "' was told a world size of " +
                                            std::to_string(last.world_size) + ", this rank " +
                                            std::to_string(world_size_));
    }
    if (const PeerInfo& first = peer_infos.front(); last.algorithms != first.algorithms) {
      throw Error(
          ErrorCode::kMismatch,
          "ranks 0 and " + std::to_string(peer_infos.size() - 1) + " of group '" + name_ +
              "' are confined to different algorithms, '" + first.algorithms + "' and '" +
              last.algorithms +
              "': Q7X2_ALGO and q7x2.Options(algorithms=...), and the files of Q7X2_PLAN, must be "
              "the same on all ranks");
    }
    if (const PeerInfo& first = peer_infos.front(); last.attached_hook != first.attached_hook) {
      throw Error(ErrorCode::kMismatch,
                  "ranks 0 and " + std::to_string(peer_infos.size() - 1) + " of group '" + name_ +
                      "' have different Q7X2_ATTACH, '" + first.attached_hook + "' and '" +
                      last.attached_hook + "': it must be the same on all ranks");
    }
  }
  refuse_mixed_encryption(peer_infos, name_);
  refuse_nat_without_streams(peer_infos, name_);
  if (const PeerInfo& own = peer_infos[static_cast<size_t>(rank_)];
      own.process != mine_.process || own.slot != mine_.slot) {
    throw Error(ErrorCode::kMismatch,
                "the peer info of rank " + std::to_string(rank_) + " in group '" + name_ +
                    "' is another process's: two ranks " + std::to_string(rank_) + "?");
  }
  for (int r = 0; r < world_size_; ++r) {
    if (r != rank_ && peer_infos[static_cast<size_t>(r)].process == mine_.process) {
      throw Error(ErrorCode::kMismatch, "ranks " + std::to_string(rank_) + " and " +
                                            std::to_string(r) + " of group '" + name_ +
                                            "' are the same process");
    }
  }
  return peer_infos;
}

Membership WireUp::meet(std::vector<PeerInfo> peer_infos) {
  Locked locked(runtime_.lock());
  std::vector<Peer*> peers;
  for (int r = 0; r < world_size_; ++r) {
    const PeerInfo& peer_info = peer_infos[static_cast<size_t>(r)];
    if (r == rank_) {
      peers.push_back(nullptr);
      continue;
    }
    // Both ends know both peer infos, and so agree on the connection.
    const uint32_t incarnation = std::max(mine_.connection(peer_info.process).incarnation,
                                          peer_info.connection(mine_.process).incarnation);
    peers.push_back(&runtime_.peers().meet(locked, peer_info, peer_info.host_key == mine_.host_key,
                                           incarnation));
  }
  return {name_, rank_, std::move(peer_infos), std::move(peers)};
}

// UCX may let a connection take over the socket of one before it that it takes for open, and the
// other end of one that this rank had not opened. So the former ones are closed at both ends before
// the next ones are opened, and both ends have opened as many.
void WireUp::renew_connections(const Membership& members, std::vector<PeerInfo> peer_infos) {
  if (tells_of_breaks(peer_infos)) {
    std::string closed;
    {
      Locked locked(runtime_.lock());
      closed = encode_renewed(runtime_.peers().renew(locked));
    }
    const std::vector<std::string> all = bootstrap_.exchange("closed", closed, [] {});
    for (size_t r = 0; r < peer_infos.size(); ++r) {
      peer_infos[r].renewed = decode_renewed(all[r]);
    }
    learn_of_breaks(runtime_);
  }
  Locked locked(runtime_.lock());
  for (int r = 0; r < world_size_; ++r) {
    renewed_.push_back(peer_infos[static_cast<size_t>(r)].connection(mine_.process));
    if (r != rank_) {
      runtime_.peers().catch_up(locked, members.peer(r), Wire::kShared, renewed_.back().opened);
    }
  }
}

// -------------------------------------------------------------------------------- private links

void WireUp::find_private_links(Group& group) {
  const Membership& members = group.membership();
  if (!members.has_private_networks()) {
    return;
  }
  // One worker's address an interface, in the peer info's order.
  const std::vector<Nic>& nics = mine_.rails;
  std::vector<std::string> addresses(nics.size());
  {
    Locked locked(runtime_.lock());
    for (int r = 0; r < world_size_; ++r) {
      if (const auto network = members.private_network(rank_, r)) {
        addresses[network->first] =
            runtime_.reactor().private_worker(locked, nics[network->first]).address();
      }
    }
  }
  const std::vector<std::string> all =
      bootstrap_.exchange("rails", encode_list(addresses), [&] { group.check(); });
  Locked locked(runtime_.lock());
  for (int r = 0; r < world_size_; ++r) {
    const auto network = members.private_network(rank_, r);
    if (!network) {
      continue;
    }
    const std::vector<std::string> theirs = decode_list(all[static_cast<size_t>(r)]);
    Peer& peer = members.peer(r);
    if (!peer.rail.exists() && network->second < theirs.size()) {
      peer.rail = Link(runtime_.reactor().private_worker(locked, nics[network->first]),
                       theirs[network->second]);
      peer.rail_address = IpAddress::v4(members.peer_info(r).rails[network->second].address);
      runtime_.peers().catch_up(locked, peer, Wire::kPrivate,
                                renewed_[static_cast<size_t>(r)].opened_rail);
    }
  }
}

}  // namespace q7x2
