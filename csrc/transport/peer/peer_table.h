// PeerTable: the processes that this one is connected to, by process, for all groups together.
//
// A connection lives as long as the table, unless it breaks. A broken connection is never used
// again: the groups that used it fail, and a later group uses the next incarnation,
// which is another Peer. The peer infos of both ends say which one that is.
//
// The LivenessMonitor, the PathWatch and UCX report that a peer seems to be dead. It is then
// suspect for a short grace period, in which what it had sent is still received. Then it is dead
// (PeerLife): its links are cut, it gets a break notice unless it knows, and `on_death` tells the
// groups.
//
// Code that makes a group must first ask whether everything that has happened is known
// (`is_up_to_date`); otherwise the new group might use a connection that broke unnoticed.
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
#include "transport/peer/stream_paths.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class PeerTable {
 public:
  using TimePoint = PeerLife::TimePoint;
  using OnDeath = std::function<void(Locked&, Peer&)>;

  /// `self`: this process. `addresses`: see HeartbeatListener; `advertised`: where it is reached
  /// from other networks. `on_death`: called once per peer, after its links were cut. Throws the
  /// errors of LivenessMonitor.
  PeerTable(const JobSecret& secret, const Identity& self, const std::vector<IpAddress>& addresses,
            const Advertised& advertised, Reactor& reactor, OnDeath on_death);
  PeerTable(const PeerTable&) = delete;
  PeerTable& operator=(const PeerTable&) = delete;

  /// Which processes may connect to this one.
  Admission& admission() { return admission_; }
  /// Asks the process to admit this one, unless it already has, or need not.
  void ask_for_admission(Locked&, const PeerInfo& peer_info, bool same_host);
  /// Whether some processes have been asked and have not answered. They may never answer. Polls.
  bool awaits_admission(Locked& locked, TimePoint now);

  /// The connection to a process for a new group: `incarnation` or a later one. Earlier
  /// incarnations die, if they have not yet.
  Peer& meet(Locked& locked, const PeerInfo& peer_info, bool same_host, uint32_t incarnation);
  /// The newest incarnation; null if no group has met the process.
  Peer* find(Locked&, uint64_t process);
  /// The connections that broke, for this process's peer info. They are closed here now.
  std::vector<PeerInfo::Renewed> renew(Locked& locked);

  /// UCX numbers the connections to a peer, and treats two as the same if their numbers are equal
  /// at both ends. `opened`: how many connections the peer has opened over this path before this
  /// incarnation. This process opens as many. The path must exist.
  void catch_up(Locked& locked, Peer& peer, Wire wire, uint32_t opened);

  /// Opens the shared link. Returns false if the peer cannot be reached; it is then suspect.
  bool connect(Locked& locked, Peer& peer);
  /// Watches the peer from now on, even without a connection to it. A port that refuses means that
  /// its process has ended. So the peer must have published its port recently, or others must say
  /// that it has failed.
  void watch(Locked&, Peer& peer);
  /// Opens the private link. Returns false if it does not work.
  bool connect_rail(Locked&, Peer& peer);

  /// Opens the path of many connections, if it is not open. Returns false if the peer cannot be
  /// reached over one.
  bool connect_stream(Locked& locked, Peer& peer);

  /// The peer seems to be dead. `reason`: completes "rank 3 failed: ...".
  void suspect(Locked&, Peer& peer, std::string reason,
               Evidence evidence = Evidence::kConnectionBroke);
  /// Closes the connection at once and by force: everything in progress over it ends.
  void cut_off(Locked& locked, Peer& peer, std::string reason);
  /// Any thread.
  bool has_suspects() const { return has_suspects_.load(std::memory_order_relaxed); }
  /// Shared memory brings no messages to this process any more: tells the other processes of this
  /// host.
  void lose_host(Locked&);
  /// Declares those dead whose grace period is over. Before that it calls `receive`, once per peer,
  /// which must receive what they had sent.
  void declare_dead(Locked& locked, TimePoint now, const std::function<void()>& receive);
  /// When the first grace period ends; max: no peer is suspect.
  TimePoint death_due(Locked&) const;

  /// Any thread. Grows each time a peer becomes suspect or its process ends.
  uint64_t num_losses() const { return num_losses_.load(std::memory_order_acquire); }
  /// Whether this process knows everything that the kernel and UCX know about connections: UCX
  /// reports nothing more, and no descriptor is ready that would wake a thread. Progresses both. If
  /// it returns false, handle what has arrived, and ask again.
  bool is_up_to_date(Locked& locked, TimePoint now);

  /// Any thread. Becomes readable when `poll` should be called.
  int poll_fd() const { return monitor_.fd(); }
  /// When `poll` should be called at the latest.
  TimePoint poll_due(Locked&) const;
  /// Polls the watches; peers that they report as dead become suspect.
  void poll(Locked& locked, TimePoint now);

  /// The port for heartbeats of other hosts, for this process's peer info.
  uint16_t heartbeat_port(Locked&) const { return monitor_.port(); }
  /// See StreamPaths.
  void describe_streams(Locked&, PeerInfo& own) const { streams_.describe(own); }
  /// Number of processes of other hosts that this process watches.
  size_t num_heartbeats(Locked&) const { return monitor_.num_heartbeats(); }
  /// What is known about a peer that is alive but late: "its process is stopped", "its host
  /// answers". Empty if nothing is known.
  std::string why_late(Locked&, const Peer& peer) const;

  /// See close_connections.
  void close(Locked& locked, std::chrono::milliseconds patience);

 private:
  /// Ends the connections to earlier runtimes of the process of `peer_info`, which is on this host.
  void end_former_lives(Locked& locked, const PeerInfo& peer_info);
  void watch(Peer& peer, Wire wire, bool believes_refusals = false);
  // peer_table_streams.cpp, with `connect_stream`
  StreamPaths::Events stream_events();
  void suspect_stream(Locked& locked, Peer& peer);
  void open_stream(Peer& peer, bool begins);
  CallFate answer_call(Locked& locked, uint64_t process, uint64_t epoch);
  bool is_nat_between(const PeerInfo& peer_info, bool same_host) const {
    return !same_host && (peer_info.behind_nat || streams_.is_behind_nat());
  }
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
  StreamPaths streams_;
  std::unordered_map<uint64_t, std::unique_ptr<Peer>> peers_;  // by process
  // replaced peers; groups that failed still refer to them
  std::vector<std::unique_ptr<Peer>> former_;
  TimePoint next_files_{};
  std::atomic<bool> has_suspects_{false};
  std::atomic<uint64_t> num_losses_{0};
};

}  // namespace q7x2
