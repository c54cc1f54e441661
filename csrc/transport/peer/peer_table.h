// PeerTable: the processes that this one is connected to, by process, whatever groups they share.
//
// A connection lives as long as the table, unless it breaks. A connection that broke is never used
// again: the groups that used it fail, and a group that is made later uses the next incarnation,
// which is another Peer. The peer infos of both ends say which one that is.
//
// The LivenessMonitor, the PathWatch and UCX say that a peer seems to be dead. It is suspect then
// for a short grace, in which what it had sent is still received. Then it is dead (PeerLife): its
// links are cut, it is told so by a break notice unless it knows, and `on_death` tells the groups.
//
// Whoever makes a group asks first whether all is known that has happened (`is_up_to_date`),
// because the new group would use a connection that broke unseen.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/peer/admission.h"
#include "transport/peer/liveness_monitor.h"
#include "transport/peer/path_watch.h"
#include "transport/peer/peer.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class PeerTable {
 public:
  using TimePoint = PeerLife::TimePoint;
  using OnDeath = std::function<void(Locked&, Peer&)>;

  /// `self`: this process. `addresses`: see HeartbeatListener. `on_death`: called once for each
  /// peer, after its links were cut. Throws what LivenessMonitor
  /// throws.
  PeerTable(const JobSecret& secret, const Identity& self, const std::vector<IpAddress>& addresses,
            Reactor& reactor, OnDeath on_death);
  PeerTable(const PeerTable&) = delete;
  PeerTable& operator=(const PeerTable&) = delete;

  /// Who may connect to this process.
  Admission& admission() { return admission_; }
  /// Asks the process to let this one connect, unless it does already, or need not.
  void ask_for_admission(Locked&, const PeerInfo& peer_info, bool same_host);
  /// Some have been asked and have not answered yet; they never may. Polls.
  bool awaits_admission(Locked& locked, TimePoint now);

  /// The connection to a process for a new group: `incarnation` or a later one. What came before it
  /// dies, if it has not yet.
  Peer& meet(Locked& locked, const PeerInfo& peer_info, bool same_host, uint32_t incarnation);
  /// The newest incarnation; null for a process that no group met.
  Peer* find(Locked&, uint64_t process);
  /// What this process's peer info says of connections that broke. They are closed here now.
  std::vector<PeerInfo::Renewed> renew(Locked& locked);

  /// UCX counts the connections to a peer, and takes those for one that have the same number at
  /// both ends. A peer that has opened `opened` over this path before this incarnation is caught up
  /// with. The path must exist.
  void catch_up(Locked& locked, Peer& peer, Wire wire, uint32_t opened);

  /// Opens the shared link. False: the peer cannot be reached, and is suspect now.
  bool connect(Locked& locked, Peer& peer);
  /// Watches the peer from now on, also without a connection to it. A port that refuses means that
  /// its process has ended, so it must have named its port lately, or have failed as others say.
  void watch(Locked&, Peer& peer);
  /// Opens the private link. False: it does not work.
  bool connect_rail(Locked&, Peer& peer);

  /// The peer seems to be dead. `reason`: completes "rank 3 failed: ...".
  void suspect(Locked&, Peer& peer, std::string reason,
               Evidence evidence = Evidence::kConnectionBroke);
  /// Closes the connection at once, by force: what is in progress over it ends.
  void cut_off(Locked& locked, Peer& peer, std::string reason);
  /// Any thread.
  bool has_suspects() const { return has_suspects_.load(std::memory_order_relaxed); }
  /// This process receives nothing from its host any more: tells the others of the host.
  void lose_host(Locked&);
  /// Those whose grace is over die. `receive` is called before that, once for each: it takes what
  /// they had sent.
  void declare_dead(Locked& locked, TimePoint now, const std::function<void()>& receive);
  /// When the first grace ends; max: nobody is suspect.
  TimePoint death_due(Locked&) const;

  /// Any thread. Has grown when some peer became suspect or its process has ended.
  uint64_t num_losses() const { return num_losses_.load(std::memory_order_acquire); }
  /// Whether all is known here that the kernel and UCX know of connections: UCX reports nothing any
  /// more, and nothing is ready that would wake a thread. Progresses both. False: take what has
  /// come, and ask again.
  bool is_up_to_date(Locked& locked, TimePoint now);

  /// Any thread. Becomes readable when `poll` should be called.
  int poll_fd() const { return monitor_.fd(); }
  /// When it should be called at the latest.
  TimePoint poll_due(Locked&) const;
  /// Polls the watches: who they say is dead becomes suspect.
  void poll(Locked& locked, TimePoint now);

  /// The port that heartbeats of other hosts come to, for this process's peer info.
  uint16_t heartbeat_port(Locked&) const { return monitor_.port(); }
  /// How many processes of other hosts this one watches.
  size_t num_heartbeats(Locked&) const { return monitor_.num_heartbeats(); }
  /// What is known of a peer that is alive but late: "its process is stopped", "its host answers".
  /// Empty: nothing.
  std::string why_late(Locked&, const Peer& peer) const;

  /// See close_connections.
  void close(Locked& locked, std::chrono::milliseconds patience);

 private:
  /// Connections to what the process of `peer info`, of this host, was before.
  void end_former_lives(Locked& locked, const PeerInfo& peer_info);
  void watch(Peer& peer, Wire wire, bool believes_refusals = false);
  /// Its port for heartbeats.
  HeartbeatTarget port_of(const Peer& peer, HeartbeatHello::Topic topic) const;
  void die(Locked& locked, Peer& peer);
  /// A peer has given up its connection to this process.
  void hear(Locked& locked, const HeartbeatHello& notice);
  void poll_paths(Locked& locked, TimePoint now);
  static void on_shared_error(void* arg, ucp_ep_h endpoint, ucs_status_t status);
  static void on_rail_error(void* arg, ucp_ep_h endpoint, ucs_status_t status);

  const JobSecret secret_;
  Reactor& reactor_;
  const OnDeath on_death_;
  LivenessMonitor monitor_;
  Admission admission_;
  PathWatch paths_;
  std::unordered_map<uint64_t, std::unique_ptr<Peer>> peers_;  // by process
  std::vector<std::unique_ptr<Peer>> former_;  // replaced; groups that failed know them
  TimePoint next_files_{};
  std::atomic<bool> has_suspects_{false};
  std::atomic<uint64_t> num_losses_{0};
};

}  // namespace q7x2
