// PeerTable: the processes that this one is connected to, by process, whatever groups they share.
//
// A connection lives as long as the table, unless it breaks. A connection that broke is never used
// again: the groups that used it fail, and a group that is made later uses the next incarnation,
// which is another Peer. The peer infos of both ends say which one that is.
//
// The FailureDetector and UCX say that a peer seems to be dead. It is suspect then for a short
// grace, in which what it had sent is still received. Then it is dead, and `on_death` tells the
// groups.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "transport/peer/failure_detector.h"
#include "transport/peer/path_watch.h"
#include "transport/peer/peer_info.h"
#include "transport/peer/peer_life.h"
#include "transport/ucx/link.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class PeerTable;

/// One incarnation of the connection to another process. Guarded by the reactor's lock.
struct Peer {
  PeerTable* table = nullptr;
  PeerInfo info;
  uint32_t incarnation = 0;
  /// How many connections over one path were opened at this end.
  struct Opened {
    uint32_t before = 0;  ///< incarnations before this one
    bool now = false;     ///< this one

    uint32_t all() const { return before + (now ? 1 : 0); }
  };
  Opened opened_shared;
  Opened opened_rail;
  bool same_host = false;
  PeerLife life;

  /// A path to the peer, as the detector knows it.
  struct Watched {
    Peer* peer;
    bool is_rail;
  };
  Watched watched_shared{this, false};
  Watched watched_rail{this, true};
  bool has_ended = false;  ///< its process is gone, says its kernel; there is nothing to connect to
  bool was_seen = false;   ///< it was alive after this process had met it
  bool is_shm_blocked = false;  ///< it receives nothing from its host any more: see QueueWatch
  bool is_silent = false;       ///< its host has not answered for long
  bool is_blocked = false;      ///< its host answers, but data does not get through
  bool has_given_up = false;    ///< it has given up the connection, and this end need not say so
  bool was_cut_off = false;  ///< this process has closed the connection, because the peer was late

  Link shared;             ///< over the network that all hosts share, or UCX's shared memory
  Link rail;               ///< the private link to its host, if there is one
  IpAddress rail_address;  ///< of the peer on it
  /// Groups rely on the private link, so its failure is the peer's. Until then it is only a failed
  /// attempt.
  bool relies_on_rail = false;
  bool watches_rail = false;

  Link& link(Wire wire) { return wire == Wire::kPrivate ? rail : shared; }
  Opened& opened(Wire wire) { return wire == Wire::kPrivate ? opened_rail : opened_shared; }
};

class PeerTable {
 public:
  using TimePoint = PeerLife::TimePoint;
  using OnDeath = std::function<void(Locked&, Peer&)>;

  /// `self`: this process. `addresses`: see HeartbeatListener. `on_death`: called once for each
  /// peer, after its links were cut. Throws what FailureDetector throws.
  PeerTable(const JobSecret& secret, const Identity& self, const std::vector<IpAddress>& addresses,
            Reactor& reactor, OnDeath on_death);
  PeerTable(const PeerTable&) = delete;
  PeerTable& operator=(const PeerTable&) = delete;

  /// Other hosts may call this process's port for heartbeats from now on, until `expect_no_others`
  /// was called as often: its peer info goes out, and nobody knows yet to whom.
  void expect_others(Locked&);
  void expect_no_others(Locked&);
  /// These processes may connect to this one, over TCP if they must, and call it. `host_key`: this
  /// host's. Throws Error(kTransport).
  void admit(Locked& locked, std::span<const PeerInfo> peer_infos, std::string_view host_key);

  /// Where to ask the process to let this one connect. Nothing: it does already, or need not.
  std::optional<Heartbeat::Target> port_to_ask(Locked&, const PeerInfo& peer_info,
                                               bool same_host) const;

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

  /// The peer seems to be dead. `reason` completes "rank 3 failed: ...".
  void suspect(Locked&, Peer& peer, std::string reason,
               Evidence evidence = Evidence::kConnectionBroke);
  /// Closes the connection at once, by force: what is in progress over it ends.
  void cut_off(Locked& locked, Peer& peer, std::string reason);
  /// Any thread.
  bool has_suspects() const { return has_suspects_.load(std::memory_order_relaxed); }
  /// This process receives nothing from its host any more: tells the others of the host.
  void lose_host(Locked&);
  /// Those whose grace is over die. `look` is called before that, once for each: it receives what
  /// they had sent.
  void declare_dead(Locked& locked, TimePoint now, const std::function<void()>& look);
  /// When the first grace ends; max: nobody is suspect.
  TimePoint death_due(Locked&) const;

  /// Any thread. Has grown when some peer became suspect or its process has ended.
  uint64_t num_losses() const { return num_losses_.load(std::memory_order_acquire); }

  /// Any thread. Becomes readable when `look` should be called.
  int watch_fd() const { return detector_.fd(); }
  /// When it should be called at the latest.
  TimePoint look_due(Locked&) const;
  /// Asks the detector: who it says is dead becomes suspect.
  void look(Locked& locked, TimePoint now);

  /// The port that heartbeats of other hosts come to, for this process's peer info.
  uint16_t heartbeat_port(Locked&) const { return detector_.port(); }
  /// How many processes of other hosts this one watches.
  size_t num_heartbeats(Locked&) const { return detector_.num_heartbeats(); }
  /// What is known of a peer that is alive but late: "its process is stopped", "its host answers".
  /// Empty: nothing.
  std::string why_late(Locked&, const Peer& peer) const;

  /// Closes all connections, with patience for what is still being sent to hosts that answer.
  void close(Locked& locked, std::chrono::milliseconds patience);

 private:
  /// Connections to what the process of `peer info`, of this host, was before.
  void end_former_lives(Locked& locked, const PeerInfo& peer_info);
  /// Whether the two talk through shared memory only.
  bool is_in_memory(const PeerInfo& peer_info, bool same_host) const;
  /// `are_others`: there are hosts among them that are not this one.
  void admit(Locked& locked, const HostAddresses& hosts, bool are_others);
  /// The port is open to whom this process expects.
  void open_port();
  void watch(Peer& peer, Wire wire, bool believes_refusals = false);
  /// Its port for heartbeats.
  Heartbeat::Target port_of(const Peer& peer, HeartbeatHello::Topic topic) const;
  void die(Locked& locked, Peer& peer);
  /// Peers that have given up their connection to this process.
  void hear_notices(Locked& locked);
  /// Lets those connect that have asked for it.
  void hear_admission_calls(Locked& locked);
  // peer_paths.cpp: whose paths are blocked.
  void watch_paths(Locked& locked, TimePoint now);
  bool answers_elsewhere(const IpAddress& address, TimePoint now) const;
  std::vector<Peer::Watched*> users_of(const PathSample& connection);
  bool has_opened_another(const Peer::Watched& user, const PathSample& connection) const;
  /// Until the kernels of all peers have what was sent, or for `patience` none of it has arrived.
  /// Connections to hosts that do not answer are closed by force instead.
  void await_acknowledgements(Locked& locked, std::chrono::milliseconds patience);
  bool takes_messages(const Peer& peer, TimePoint now) const;
  static void on_shared_error(void* arg, ucp_ep_h endpoint, ucs_status_t status);
  static void on_rail_error(void* arg, ucp_ep_h endpoint, ucs_status_t status);

  const JobSecret secret_;
  Reactor& reactor_;
  const OnDeath on_death_;
  FailureDetector detector_;
  PathWatch paths_;
  std::unordered_map<uint64_t, std::unique_ptr<Peer>> peers_;  // by process
  std::vector<std::unique_ptr<Peer>> former_;  // replaced; groups that failed know them
  int num_expecting_ = 0;         // reasons to be called by hosts that are not known yet
  bool has_other_hosts_ = false;  // among those that were admitted
  TimePoint next_files_{};
  std::atomic<bool> has_suspects_{false};
  std::atomic<uint64_t> num_losses_{0};
};

}  // namespace q7x2
