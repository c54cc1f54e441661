#include "transport/peer/admission.h"

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace q7x2 {

void Admission::open_port() {
  if (num_expecting_ > 0) {
    monitor_.open_port(std::nullopt);
  } else if (has_other_hosts_) {
    monitor_.open_port(reactor_.admitted());
  } else {
    monitor_.shut_port();
  }
}

void Admission::expect_others(Locked&) {
  ++num_expecting_;
  open_port();
}

void Admission::expect_no_others(Locked&) {
  --num_expecting_;
  open_port();
}

bool Admission::needs_network(const PeerInfo& peer_info, bool same_host) const {
  return !same_host || !share_memory(peer_info.transports, join_list(reactor_.transports()));
}

void Admission::admit(Locked& locked, std::span<const PeerInfo> peer_infos,
                      std::string_view host_key) {
  HostAddresses hosts;
  bool are_others = false;
  for (const PeerInfo& peer_info : peer_infos) {
    const bool same_host = peer_info.host_key == host_key;
    if (!needs_network(peer_info, same_host)) continue;
    if (admit_over_nat(peer_info, same_host)) continue;
    hosts.add(peer_info.addresses());
    are_others |= !same_host;
  }
  admit(locked, hosts, are_others);
}

void Admission::admit(Locked& locked, const PeerInfo& peer_info, bool same_host) {
  if (!needs_network(peer_info, same_host) || admit_over_nat(peer_info, same_host)) return;
  admit(locked, peer_info.addresses(), !same_host);
}

// Its own addresses say nothing here: another host of this network may have them.
bool Admission::admit_over_nat(const PeerInfo& peer_info, bool same_host) {
  if (same_host || !(peer_info.behind_nat || behind_nat_)) return false;
  if (StreamLane* const lane = reactor_.streams()) lane->admit_all();
  return true;
}

void Admission::admit(Locked& locked, const HostAddresses& hosts, bool are_others) {
  const bool is_new = reactor_.admit(locked, hosts);
  if (!is_new && (!are_others || has_other_hosts_)) return;
  has_other_hosts_ |= are_others;
  open_port();
}

void Admission::poll(Locked& locked) {
  const std::vector<IpAddress> callers = monitor_.take_admission_calls();
  for (const IpAddress& address : callers) {
    HostAddresses caller;
    caller.add(address);
    try {
      if (reactor_.admit(locked, caller)) open_port();
    } catch (const Error& error) {
      log(Level::kWarn, std::string("a process of another host cannot connect: ") + error.what());
    }
  }
  if (!callers.empty()) monitor_.admit_callers();
}

}  // namespace q7x2
