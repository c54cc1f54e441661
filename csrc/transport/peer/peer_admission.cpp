// Who may connect to this process, and call its port; and where the ports of others are.
#include <optional>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "transport/peer/peer_table.h"
#include "transport/peer/reach.h"

namespace q7x2 {

void PeerTable::open_port() {
  if (num_expecting_ > 0) {
    detector_.open_port(std::nullopt);
  } else if (has_other_hosts_) {
    detector_.open_port(reactor_.admitted());
  } else {
    detector_.shut_port();
  }
}

void PeerTable::expect_others(Locked&) {
  ++num_expecting_;
  open_port();
}

void PeerTable::expect_no_others(Locked&) {
  --num_expecting_;
  open_port();
}

Heartbeat::Target PeerTable::port_of(const Peer& peer, HeartbeatHello::Topic topic) const {
  const bool is_rail = topic == HeartbeatHello::Topic::kPrivate;
  return {.process = peer.info.process,
          .incarnation = peer.incarnation,
          .endpoint = {peer.same_host ? kLoopback
                       : is_rail      ? peer.rail_address
                                      : peer.info.heartbeat_address,
                       peer.info.heartbeat_port},
          .topic = topic,
          .key = secret_.key_to(peer.info.identity())};
}

bool PeerTable::is_in_memory(const PeerInfo& peer_info, bool same_host) const {
  return same_host && share_memory(peer_info.transports, join_list(reactor_.transports()));
}

std::optional<Heartbeat::Target> PeerTable::port_to_ask(Locked&, const PeerInfo& peer_info,
                                                        bool same_host) const {
  if (is_in_memory(peer_info, same_host) || peers_.contains(peer_info.process)) return std::nullopt;
  // Not at the loopback, also on this host: the caller shall have the address that UCX will have.
  Peer peer;
  peer.info = peer_info;
  return port_of(peer, HeartbeatHello::Topic::kAdmit);
}

void PeerTable::admit(Locked& locked, std::span<const PeerInfo> peer_infos,
                      std::string_view host_key) {
  HostAddresses hosts;
  bool are_others = false;
  for (const PeerInfo& peer_info : peer_infos) {
    const bool same_host = peer_info.host_key == host_key;
    if (is_in_memory(peer_info, same_host)) continue;
    hosts.add(peer_info.addresses());
    are_others |= !same_host;
  }
  admit(locked, hosts, are_others);
}

void PeerTable::admit(Locked& locked, const HostAddresses& hosts, bool are_others) {
  const bool is_new = reactor_.admit(locked, hosts);
  if (!is_new && (!are_others || has_other_hosts_)) return;
  has_other_hosts_ |= are_others;
  open_port();
}

void PeerTable::hear_admission_calls(Locked& locked) {
  const std::vector<IpAddress> callers = detector_.take_admission_calls();
  for (const IpAddress& address : callers) {
    HostAddresses caller;
    caller.add(address);
    try {
      if (reactor_.admit(locked, caller)) open_port();
    } catch (const Error& error) {
      log(Level::kWarn, std::string("a process of another host cannot connect: ") + error.what());
    }
  }
  if (!callers.empty()) detector_.admit_callers();
}

}  // namespace q7x2
