// How the ranks of a host map each other's memory while their group is made.
#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "fabric/host.h"
#include "transport/bootstrap/wire_up.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

/// Whether ranks that could share memory have none yet. All ranks of the group say the same.
bool memory_comes_late(const Membership& members) {
  struct Host {
    size_t ranks = 0;
    bool lacks = false;
  };
  std::map<std::string_view, Host> hosts;
  for (int r = 0; r < members.world_size(); ++r) {
    Host& host = hosts[members.peer_info(r).host_key];
    ++host.ranks;
    host.lacks |= members.peer_info(r).memory.empty();
  }
  return std::any_of(hosts.begin(), hosts.end(), [](const auto& each) {
    const Host& host = each.second;
    return host.lacks && host.ranks > 1 && host.ranks <= ShmChannel::kMaxMembers;
  });
}

bool is_shareable(const Membership& members) {
  const size_t count = members.host_ranks().size();
  return count > 1 && count <= ShmChannel::kMaxMembers;
}

}  // namespace

std::unique_ptr<ShmChannel> WireUp::new_channel(int members) {
  try {
    const Locked locked(runtime_.lock());
    return std::make_unique<ShmChannel>(runtime_.reactor().context(), runtime_.process(), members);
  } catch (const Error& error) {
    no_channel_ = error.what();
    return nullptr;
  }
}

void WireUp::share_memory(Group& group) {
  const Membership& members = group.membership();
  const auto ranks = static_cast<int>(members.host_ranks().size());
  if (ranks > usable_cpus()) {
    runtime_.parking().set_crowded();
  }
  runtime_.jobs().allow_lanes(lanes_of_process(usable_cpus(), ranks));
  const std::vector<std::string> keys = memory_keys(group);
  if (is_shareable(members) && channel_) {
    map_memory(group, keys);
    return;
  }
  const std::string why =
      is_shareable(members)
          ? "this rank has no memory to share: " + no_channel_
          : "at most " + std::to_string(ShmChannel::kMaxMembers) + " ranks of a host share memory";
  for (const int r : members.host_ranks()) {
    if (r != rank_) group.messages().refuse_memory(r, why);
  }
}

std::vector<std::string> WireUp::memory_keys(Group& group) {
  const Membership& members = group.membership();
  std::vector<std::string> keys;
  for (int r = 0; r < world_size_; ++r) {
    keys.push_back(members.peer_info(r).memory);
  }
  if (memory_comes_late(members)) {
    std::string late;
    if (is_shareable(members) && !channel_) {
      channel_ = new_channel(static_cast<int>(members.host_ranks().size()));
      late = channel_ ? channel_->key() : "";
    }
    const std::vector<std::string> all =
        bootstrap_.exchange("memory", late, [&] { group.check(); });
    for (size_t r = 0; r < keys.size(); ++r) {
      if (keys[r].empty()) {
        keys[r] = all[r];
      }
    }
  }
  return keys;
}

// That two ranks have the same host key says that they should be able to share memory; whether they
// can is tried, and both must have succeeded. They tell each other in the memory itself. A rank
// that has mapped a segment reads in it whether the owner has mapped this rank's segment.
void WireUp::map_memory(Group& group, const std::vector<std::string>& keys) {
  const Membership& members = group.membership();
  const std::vector<int>& ranks = members.host_ranks();
  const auto count = static_cast<int>(ranks.size());
  const auto self = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  GroupMessages& messages = group.messages();
  ShmChannel& channel = *channel_;
  channel.join(self, count);
  for (int step = 1; step < count; ++step) {
    // Each rank starts with its successor, so that no rank is called by all at once.
    const int member = (self + step) % count;
    const int rank = ranks[static_cast<size_t>(member)];
    const std::string& key = keys[static_cast<size_t>(rank)];
    if (key.empty()) {
      messages.refuse_memory(rank, members.describe(rank) + " has no memory to share");
      continue;
    }
    try {
      Locked locked(runtime_.lock());
      // Without a hello: who maps this rank's memory connects to it as well.
      if (runtime_.peers().connect(locked, members.peer(rank))) {
        channel.map(member, members.peer(rank).shared.endpoint(), key,
                    members.peer_info(rank).process);
      }
    } catch (const Error& error) {
      // These two talk through UCX's transports.
      messages.refuse_memory(rank, error.what());
    }
    channel.tell(member);
  }
  int next = 0;
  const auto missing = [&] {
    while (next < count && (!channel.is_mapped(next) || channel.told_by(next))) {
      ++next;
    }
    return next < count ? ranks[static_cast<size_t>(next)] : -1;
  };
  // Others of the group may wait for this rank by now.
  bootstrap_.wait_for(missing, [&] {
    group.check();
    set_awaited(group, missing());
  });
  set_awaited(group, -1);

  Locked locked(runtime_.lock());
  for (int member = 0; member < count; ++member) {
    if (channel.is_mapped(member) && *channel.told_by(member)) {
      channel.open(member);
    } else if (member != self) {
      const int rank = ranks[static_cast<size_t>(member)];
      if (messages.memory_refusal(rank).empty()) {
        messages.refuse_memory(rank, members.describe(rank) + " could not map this rank's memory");
      }
      group.links().greet(locked, rank);
    }
  }
  messages.share_memory(locked, std::move(channel_),
                        [&group](Locked& held, uint64_t tag, int sender) {
                          return group.agreement().hear_unexpected(held, tag, sender);
                        });
  // A message that came before, from a rank that may have left since.
  runtime_.groups().hear_ring(locked, group.slot());
  for (const int r : ranks) {
    if (group.departure().has_left(r)) messages.drop(locked, r);
  }
}

}  // namespace q7x2
