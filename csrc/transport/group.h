// Group: the ranks of one process group, as this rank reaches them.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/card.h"
#include "transport/control.h"
#include "transport/host_channel.h"
#include "transport/task.h"

namespace q7x2 {

class Runtime;
struct Peer;

/// Gives `mine` to all ranks and returns what each gave, by rank. Blocks, with a deadline of its
/// own. `what` names the exchange, the same on all ranks and once per group. `check` is called now
/// and then, and throws when the exchange is pointless.
using Exchange = std::function<std::vector<std::string>(
    const std::string& what, const std::string& mine, const std::function<void()>& check)>;

/// Blocks until `missing`, which names a rank that is waited for, returns -1. It is called now and
/// then, like `check`, which throws when the wait is pointless. Has a deadline of its own.
using Await =
    std::function<void(const std::function<int()>& missing, const std::function<void()>& check)>;

class Group {
 public:
  /// Registers a slot, exchanges cards, and knows all peers afterwards. Ranks of one host map each
  /// other's memory; the others connect on first use, or at once with `eager`. `algorithms`: to
  /// which this rank's collectives are confined; throws Error(kMismatch) if the ranks disagree.
  static std::shared_ptr<Group> create(Runtime& runtime, int rank, int world_size,
                                       const std::string& name, const Exchange& exchange,
                                       const Await& await, bool eager,
                                       const std::string& algorithms = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::string& name() const { return name_; }
  Runtime& runtime() const { return runtime_; }
  /// What `rank` published of itself.
  const Card& card(int rank) const { return cards_[static_cast<size_t>(rank)]; }
  /// Whether `rank` can share memory with this one.
  bool same_host(int rank) const;
  /// Ranks on this host, this one included.
  int ranks_on_host() const;
  bool one_host() const { return ranks_on_host() == world_size_; }

  // Any thread; these take the reactor's lock.

  /// Connects to every peer.
  void connect_all();
  /// Transports of the connection to `rank`, for example {"posix"}; empty before first use.
  std::vector<std::string> transports(int rank);
  /// Fails everything in progress and to come, here and at all other ranks, with `error`.
  void abort(const Error& error);
  /// Leaves in good order: what is still in progress here fails, peers are told. Idempotent.
  void leave();
  /// What is in progress: everything, and the collectives only.
  std::vector<std::shared_ptr<Task>> tasks();
  std::vector<std::shared_ptr<Task>> collectives();
  /// The error that ended the group, if any.
  std::optional<Error> error();
  /// Throws that error.
  void check();

  /// Whether the hosts of two ranks have a private link; all ranks say the same. That it works must
  /// be tried.
  bool has_private_link(int a, int b) const { return private_network(a, b).has_value(); }
  /// From now on collectives send to and receive from `rank` over its private link. To be called by
  /// both ranks, before the first collective.
  void use_private_link(int rank);

  // For hooks of tasks. Completion comes to Task::completed, never from inside these calls.

  /// `tag`: see transport/tag.h; its slot is filled in here.
  void send(Task& task, uint32_t token, int destination, uint64_t tag, const void* data,
            size_t length, Wire wire = Wire::kShared);
  /// `source` -1: from any, over the shared network. `tag` must carry this rank's slot.
  void receive(Task& task, uint32_t token, int source, uint64_t tag, uint64_t mask, void* data,
               size_t length, Wire wire = Wire::kShared);
  /// What collectives use towards `rank`.
  Wire wire(int rank) const { return wires_[static_cast<size_t>(rank)]; }

  // For hooks of tasks: messages of collectives between ranks that share memory.

  /// Whether messages to and from `rank` go through shared memory. Both ranks say the same.
  bool shares_memory(int rank) const { return member_at_[static_cast<size_t>(rank)] >= 0; }
  /// Null where no rank shares memory with this one.
  HostChannel* channel() const { return channel_.get(); }
  /// Sends bytes that a letter carries (`staged` null, at most HostChannel::kInlineBytes), or that
  /// lie staged in the channel's arena under a ticket. True: done; else Task::completed follows.
  bool send_shared(Task& task, uint32_t token, int destination, uint64_t tag, const void* data,
                   size_t length, int ticket);
  /// The message, if it is there; it is the caller's then. Else Task::arrived follows.
  std::optional<HostChannel::Message> receive_shared(Task& task, uint32_t token, int source,
                                                     uint64_t tag);
  /// This rank is done with a message's staged bytes.
  void give_back(int source, const HostChannel::Message& message);
  /// Frees the staging and the tickets as soon as nobody reads them any more.
  void retire_staging(HostChannel::Staging staging, std::vector<int> tickets);
  /// What collective number `sequence` is, for ranks that ask: they must agree on `fingerprint`.
  void remember(uint64_t sequence, uint64_t fingerprint) {
    calls_[sequence % kRemembered] = fingerprint;
  }
  /// For a collective that has all that it waited for: a message that no receive was ever posted
  /// for, of this collective or one before. Its sender called something else.
  std::optional<Error> leftover();
  /// Calls Task::stalled once, when something may have changed.
  void stall(Task& task) { stalled_.push_back(&task); }
  /// Ends the group here and tells the others.
  void fail(const Error& error);

  int slot() const { return slot_; }
  int slot_at(int rank) const { return cards_[static_cast<size_t>(rank)].slot; }
  /// "rank 3 (pid 41 on host a)".
  std::string describe(int rank) const;

  // For the transport.

  void submit(Locked& locked, const std::shared_ptr<Task>& task);
  /// A task that was submitted is done.
  void task_done(Locked& locked, Task& task);
  /// A task has failed: what it waits for in shared memory is forgotten.
  void forget_shared(Locked& locked, Task& task);
  /// A request towards `rank` failed; -1: towards any.
  void request_failed(Locked& locked, Task& task, int rank, Wire wire, ucs_status_t status);
  /// Ends the group here and tells the others.
  void fail(Locked& locked, const Error& error);
  /// The error that ends the group when this rank's own code has thrown `exception`.
  Error failure_of(const std::exception& exception) const;
  /// A control message, from whoever sent it.
  void handle(Locked& locked, const Control& control);
  /// Nothing if the peer is in no rank of the group.
  void peer_died(Locked& locked, const Peer& peer);
  /// Now and then: looks whether the ranks disagree.
  void housekeep(Locked& locked, TimePoint now);
  /// Looks at the shared memory. True: something happened.
  bool progress_shared(Locked& locked);
  /// Tells ranks of this host that they must wake this one, or no more.
  void set_asleep(Locked& locked, bool asleep);

 private:
  static constexpr size_t kRemembered = 256;

  struct Expected {
    uint64_t tag;
    PendingRequest* receive;  // of a task that waits for it
  };
  struct Outgoing {
    HostChannel::Message message;
    PendingRequest* send;
  };
  /// A rank of this host. Members are numbered in the order of their ranks.
  struct Member {
    int rank = -1;
    std::vector<Expected> expected;
    std::vector<HostChannel::Message> unexpected;
    std::deque<Outgoing> outgoing;  // where the mailbox is full
  };
  struct Retired {
    HostChannel::Staging staging;
    std::vector<int> tickets;
  };

  Group(Runtime& runtime, int rank, int world_size, std::string name);

  void begin(Locked& locked, const std::shared_ptr<Task>& task);
  void fail_tasks(Locked& locked, const Error& error);
  void peer_failed(Locked& locked, int rank, const std::string& reason);
  void peer_left(Locked& locked, int rank);
  bool ensure_connected(Locked& locked, int rank);
  bool ensure_rail(Locked& locked, int rank, Wire wire);
  Control control_to(int rank, ControlType type) const;
  int rank_of(const Peer& peer) const;
  Error left_error(int rank, const Task& task) const;
  std::optional<Error> leftover(Locked& locked, uint64_t oldest);
  std::optional<Error> leftover_error(uint64_t tag, int sender, uint64_t oldest) const;
  uint64_t oldest_running(Locked& locked) const;
  void inquire(Locked& locked, TimePoint now);
  void update_sharing(Locked& locked);
  void answer(Locked& locked, const Control& inquiry);
  std::unique_ptr<HostChannel> new_channel(int members);
  bool memory_comes_late() const;
  void share_memory(std::unique_ptr<HostChannel> channel, const Exchange& exchange,
                    const Await& await);
  void find_private_links(const Exchange& exchange);
  /// The interfaces of its ends, as indices into the ranks' cards.
  std::optional<std::pair<size_t, size_t>> private_network(int a, int b) const;
  void wake(Locked& locked, int member);
  void dispatch(Locked& locked, Member& member, const HostChannel::Message& message);
  bool expects_mail() const;
  void free_returned();
  void start_waiting(Locked& locked);

  Runtime& runtime_;
  const int rank_;
  const int world_size_;
  const std::string name_;
  int slot_ = -1;
  std::vector<Card> cards_;     // by rank
  std::vector<Peer*> peers_;    // by rank; null for this rank. Owned by the peer table
  std::vector<bool> departed_;  // by rank: said goodbye
  std::vector<Wire> wires_;     // by rank

  uint64_t sequence_ = 0;
  std::array<uint64_t, kRemembered> calls_{};  // fingerprints of the last ones
  std::optional<Error> error_;
  bool closed_ = false;
  int running_ = 0;                            // tasks that take turns and have started
  std::deque<std::shared_ptr<Task>> waiting_;  // for their turn

  // Shared memory.
  std::unique_ptr<HostChannel> channel_;
  std::vector<int> member_at_;  // by rank; -1 where it does not share memory, and for this rank
  std::vector<Member> members_;
  std::vector<Retired> retired_;
  std::vector<Task*> stalled_;
};

}  // namespace q7x2
