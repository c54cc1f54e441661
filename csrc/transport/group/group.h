// Group: the ranks of one process group, and what is in progress between them.
//
// A group is open until it fails or leaves. It fails as a whole: every rank is told, and every
// later call gets the error that ended it.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/bootstrap/wire_up.h"
#include "transport/group/call_progress.h"
#include "transport/group/group_device_path.h"
#include "transport/group/membership.h"
#include "transport/peer/control.h"
#include "transport/run/task.h"
#include "transport/shm/shm_matcher.h"

namespace q7x2 {

class Runtime;

class Group {
 public:
  /// Wires the ranks up (transport/bootstrap/wire_up.h). Ranks of one host map each other's memory;
  /// the others connect on first use, or at once with `eager`. `algorithms`: to which this rank's
  /// collectives are confined. `device_path`: as this rank was told. Throws Error(kMismatch) if the
  /// ranks disagree about that or about the group.
  static std::shared_ptr<Group> create(Runtime& runtime, int rank, int world_size,
                                       const std::string& name, const Exchange& exchange,
                                       const Await& await, bool eager,
                                       const std::string& algorithms = {},
                                       DevicePath device_path = DevicePath::kAuto);
  /// For WireUp. `slot`: reserved in the group table, and the group's from here on. `begun`: when
  /// its ranks began to make it.
  Group(Runtime& runtime, int slot, Membership members, TimePoint begun);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Runtime& runtime() const { return runtime_; }
  const Membership& membership() const { return members_; }
  int rank() const { return members_.rank(); }
  int world_size() const { return members_.world_size(); }
  const std::string& name() const { return members_.name(); }
  /// What `rank` published of itself.
  const PeerInfo& peer_info(int rank) const { return members_.peer_info(rank); }
  /// "rank 3 (pid 41 on host a)".
  std::string describe(int rank) const { return members_.describe(rank); }
  /// Whether `rank` can share memory with this one.
  bool same_host(int rank) const { return members_.same_host(rank); }
  /// Ranks on this host, this one included.
  int ranks_on_host() const { return static_cast<int>(members_.host_ranks().size()); }
  bool one_host() const { return ranks_on_host() == world_size(); }
  int slot() const { return slot_; }
  /// When this rank began to make the group.
  TimePoint begun() const { return begun_; }
  /// Its number in the flight recorder; 0: it is not recorded.
  uint32_t flight() const { return flight_; }

  // Any thread; these take the reactor's lock.

  /// While the group is made: this rank waits for `rank`, so its calls are late because of that
  /// one; -1: it does not wait.
  void set_awaited(int rank);
  /// What the job calls the members, by rank; empty: the same. A later group of the job that needs
  /// one of them whose process has ended is refused.
  void set_job_ranks(std::vector<uint64_t> job_ranks);

  /// From here on the flight recorder keeps the group's operations. `job_ranks`: the members' ranks
  /// in the default group; empty: they are not known.
  void record(const std::vector<uint64_t>& job_ranks);
  /// If this group fails, so does `other`, whose calls belong to calls of this one.
  void accompany(const std::shared_ptr<Group>& other);
  /// Connects to every peer.
  void connect_all();
  /// Transports of the connection to `rank`, for example {"posix"}; empty before first use.
  std::vector<std::string> transports(int rank);
  /// Fails everything in progress and to come, here and at all other ranks, with `error`.
  void abort(const Error& error);
  /// Leaves in good order: what is still in progress here fails, peers are told. Idempotent. See
  /// Runtime::finish_collectives.
  void leave();
  /// Tells the others that this rank begins nothing more, and stays for what it has begun.
  void say_last_call(Locked& locked);
  /// Whether another member would miss `task` if this rank left: a collective that all have begun
  /// or may begin, or a message that its receiver may take.
  bool is_missed(Locked& locked, Task& task) const;
  /// What is in progress: everything, and the collectives only.
  std::vector<std::shared_ptr<Task>> tasks();
  std::vector<std::shared_ptr<Task>> collectives();
  /// The error that ended the group, if any.
  std::optional<Error> error();
  /// Throws that error.
  void check();

  /// Whether the hosts of two ranks have a private link; all ranks say the same. That it works must
  /// be tried.
  bool has_private_link(int a, int b) const { return members_.private_network(a, b).has_value(); }
  /// From now on collectives send to and receive from `rank` over its private link. To be called by
  /// both ranks, before the first collective.
  void use_private_link(int rank);

  /// While it exists, a thread waits for a task of the group and runs its jobs.
  class Waiting {
   public:
    explicit Waiting(Group& group) : group_(group) { ++group_.waiting_threads_; }
    ~Waiting() { --group_.waiting_threads_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Group& group_;
  };
  bool is_waited_for() const { return waiting_threads_.load(std::memory_order_relaxed) > 0; }

  // For hooks of tasks (group_messages.cpp). Completion comes to Task::completed, never from inside
  // these calls.

  /// `tag`: see transport/ucx/tag.h; its slot is filled in here.
  /// `kind`: of the memory at `data`.
  void send(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
            const void* data, size_t length, Wire wire = Wire::kShared,
            MemoryKind kind = MemoryKind::kHost);
  /// `source` -1: from any, over the shared network. `tag` must carry this rank's slot.
  void receive(Locked& locked, Task& task, uint32_t token, int source, uint64_t tag, uint64_t mask,
               void* data, size_t length, Wire wire = Wire::kShared,
               MemoryKind kind = MemoryKind::kHost);
  /// A message of the user, through shared memory where the two ranks have some.
  void send_message(Locked& locked, Task& task, uint32_t token, int destination, uint32_t user_tag,
                    const void* data, size_t length);
  /// `source` -1: from any rank.
  void receive_message(Locked& locked, Task& task, uint32_t token, int source, uint32_t user_tag,
                       void* data, size_t length);
  /// How uncompressed tensors on a device pass; all ranks say the same.
  const DevicePathOfGroup& device_path() const { return device_path_; }
  /// What collectives use towards `rank`.
  Wire wire(int rank) const { return wires_[static_cast<size_t>(rank)]; }

  // For hooks of tasks: messages of collectives between ranks that share memory.

  /// Whether messages to and from `rank` go through shared memory. Both ranks say the same.
  bool shares_memory(int rank) const { return matcher_ && matcher_->serves(rank); }
  /// Why `rank`, which is on this host, shares no memory with this one; empty if it does.
  const std::string& memory_refusal(int rank) const {
    return memory_refusals_[static_cast<size_t>(rank)];
  }
  /// Null where no rank shares memory with this one.
  ShmChannel* channel() const { return matcher_ ? &matcher_->channel() : nullptr; }
  /// Sends bytes that a descriptor carries (`staged` null, at most ShmChannel::kInlineBytes), or
  /// that lie staged in the channel's arena under a ticket. True: done; else Task::completed
  /// follows.
  bool send_shared(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
                   const void* data, size_t length, int ticket);
  /// The message, if it is there; it is the caller's then. Else Task::arrived follows.
  std::optional<ShmChannel::Message> receive_shared(Locked& locked, Task& task, uint32_t token,
                                                    int source, uint64_t tag);
  /// This rank is done with a message's staged bytes.
  void release_message(Locked& locked, int source, const ShmChannel::Message& message);
  /// Frees the staging and the tickets as soon as nobody reads them any more.
  void retire_staging(Locked& locked, ShmChannel::Staging staging, std::vector<int> tickets);
  /// What collective number `sequence` is, for ranks that ask: they must agree on `fingerprint`.
  void remember(Locked&, uint64_t sequence, uint64_t fingerprint) {
    calls_[sequence % kRemembered] = fingerprint;
  }
  /// For a collective that has all that it waited for: whether there is a message that no receive
  /// was ever posted for, of this collective or one before. Its sender called something else; the
  /// group fails as after `disagree`.
  bool finds_leftover(Locked& locked);
  /// A message of `peer` is not what `task`, a collective, expects. The group fails as soon as the
  /// peer has said what it called instead, or without its answer soon after.
  void disagree(Locked& locked, Task& task, int peer);
  /// Calls Task::stalled once, when something may have changed.
  void stall(Locked&, Task& task) { stalled_.push_back(&task); }

  // For the transport.

  /// It has neither failed nor left.
  bool is_usable(Locked&) const { return !error_ && !closed_; }
  void forget_job_ranks(Locked&) { job_ranks_.reset(); }
  /// Adds the other members by what the job calls them, if the group is one of a job.
  void add_job_members(Locked&, std::unordered_map<uint64_t, Peer*>& members) const;
  /// The member because of which the group has failed, or null.
  Peer* failed_member(Locked&) const;
  /// From here on the group hears of failures and messages. Takes the lock.
  void open();
  /// Ranks of this host talk through `channel`, where it is open.
  void share_memory(Locked& locked, std::unique_ptr<ShmChannel> channel);
  /// Before the first collective: messages to and from `rank` of this host do not go through
  /// memory.
  void refuse_memory(int rank, std::string why) {
    memory_refusals_[static_cast<size_t>(rank)] = std::move(why);
  }
  /// Opens the connection to `rank`, and says hello. False: it cannot be reached.
  bool connect(Locked& locked, int rank);
  /// Says hello to `rank`, so that it connects too.
  void greet(Locked& locked, int rank);

  void submit(Locked& locked, const std::shared_ptr<Task>& task);
  /// A task that was submitted is done.
  void task_done(Locked& locked, Task& task);
  /// A task has failed: what it waits for in shared memory is forgotten.
  void forget_shared(Locked& locked, Task& task);
  /// A receive from any rank has completed that waited for ranks of this host, too.
  void forget_expected(Locked& locked, PendingRequest& pending) {
    matcher_->forget_expected(locked, pending);
  }
  /// A request towards `rank` failed; -1: towards any.
  void request_failed(Locked& locked, Task& task, int rank, Wire wire, ucs_status_t status);
  /// Whether all that is on its way for a task belongs to processes that have ended.
  bool waits_for_the_dead(Locked& locked, Task& task) const;
  /// A task is over, but for long a peer has not let go of its memory. Closing the connection by
  /// force ends that. It costs all groups that use the connection.
  void cut_off(Locked& locked, Task& task);
  /// Ends the group here and tells the others.
  void fail(Locked& locked, const Error& error);
  /// The error that ends the group when this rank's own code has thrown `exception`.
  Error failure_of(const std::exception& exception) const;

  /// Who keeps a task waiting, for a person: "; rank 3 (pid 41 on host a) is late: its host
  /// answers". `rank` is -1 unless it is one rank.
  struct Lateness {
    std::string text;
    int rank = -1;
  };
  Lateness lateness(Locked& locked, Task& task);
  /// Asks `rank`, for which this process waits elsewhere, whom it waits for itself.
  void ask_whom_it_awaits(Locked& locked, int rank);
  /// Who keeps `rank` waiting, as it has said since then, for a person: "; rank 1 (pid 41 on host
  /// a) of group 'default_pg' is late: its host answers". Empty: nobody, as far as it has said.
  std::string late_behind(Locked& locked, int rank, TimePoint since) const;
  /// The process because of which the program does not go on in this group. Null: none, as far as
  /// this is known.
  const Peer* awaited_peer(Locked& locked) const;

  /// A control message, from whoever sent it.
  void handle(Locked& locked, const Control& control);
  /// Nothing if the peer is no member.
  void peer_died(Locked& locked, const Peer& peer);
  /// Now and then: looks whether the ranks disagree.
  void housekeep(Locked& locked, TimePoint now);
  /// Nothing arrives any more from other processes of this host.
  void lose_host(Locked& locked, const Error& error);
  /// Looks at the shared memory. True: something happened.
  bool progress_shared(Locked& locked);
  /// From now on `progress_shared` is called again and again, or no more unless a ring comes. The
  /// latter is false where it must be called once more.
  void start_polling(Locked& locked) { matcher_->start_polling(locked); }
  bool stop_polling(Locked& locked) { return matcher_->stop_polling(locked); }
  /// A rank of this host says that there is a message.
  void hear_ring(Locked& locked);
  /// Tells ranks of this host that they must wake this one, or no more.
  void set_asleep(Locked& locked, bool asleep);

 private:
  /// How far a collective that begins may be ahead of the oldest one in progress.
  static constexpr uint64_t kMostAhead = 256;
  /// How many collectives back a message is recognised as one that was never received.
  static constexpr uint64_t kLeftoverWindow = 256;
  static constexpr uint64_t kRemembered = kMostAhead + kLeftoverWindow;
  static constexpr uint64_t kNever = ~uint64_t{0};
  /// What an inquiry of a message carries as the number of a collective.
  static constexpr uint64_t kNoCall = ~uint64_t{0};
  /// How long after an inquiry of a message the next one follows, at least.
  static constexpr std::chrono::milliseconds kAsksAgain{400};
  /// How long an answer takes at most from a process that runs, on a busy machine.
  static constexpr std::chrono::milliseconds kAnswerTakes{500};
  // For servers. A call waits for one that stands still for two seconds at most.
  static constexpr std::chrono::milliseconds kServerPatience{1500};
  static constexpr std::chrono::milliseconds kServersAreAsked{200};

  // group.cpp: life and death.
  void fail_tasks(Locked& locked, const Error& error);
  void watch_neighbours(Locked& locked);
  void drop_mail(Locked& locked);
  void spread(Locked& locked, const Error& error);
  Control control_to(int rank, ControlType type) const;
  void tell(Locked& locked, int rank, const Error& error);

  // group_departure.cpp: ranks that leave.
  void tell_all(Locked& locked, ControlType type);
  void hear_goodbye(Locked& locked, const Control& goodbye);
  void peer_left(Locked& locked, int rank, uint64_t sequence);
  bool has_left(int rank) const { return departed_[static_cast<size_t>(rank)].has_value(); }
  int find_departed(uint64_t sequence) const;
  Error left_error(int rank, const Task& task) const;

  // group_turns.cpp: which collectives run.
  void begin(Locked& locked, const std::shared_ptr<Task>& task);
  void start_waiting(Locked& locked);
  bool is_far_ahead(Locked& locked);
  void update_sharing(Locked& locked);

  // group_agreement.cpp: whether all ranks make the same calls.
  bool finds_leftover(Locked& locked, uint64_t oldest);
  bool is_leftover(Locked& locked, uint64_t tag, int sender, uint64_t oldest);
  uint64_t oldest_running(Locked& locked) const;
  /// After which a call asks all that it waits for.
  static std::chrono::milliseconds patience_of(const Task& task);
  void inquire(Locked& locked, TimePoint now);
  /// Of a call that has asked and has `waited` so long. `will_answer`: a rank is asked already and
  /// may still answer.
  static Clock::duration until_next_inquiry(const Task& task, Clock::duration waited,
                                            bool will_answer);
  /// False: the rank is not asked, because it owes enough answers.
  bool ask(Locked& locked, int rank, uint64_t sequence, const std::string& call);
  void send_inquiry(Locked& locked, int rank, uint64_t sequence, const std::string& call);
  void ask_what_it_called(Locked& locked, int rank, uint64_t sequence);
  std::string call_name(Locked& locked, uint64_t sequence) const;
  void answer(Locked& locked, const Control& inquiry);
  Error disagreement(int a, const std::string& what_a_did, int b,
                     const std::string& what_b_did) const;
  std::string what_it_did(Locked& locked, uint64_t sequence) const;

  // group_lateness.cpp: who keeps the others waiting.
  Task* find_running(Locked& locked, uint64_t sequence) const;
  std::set<int> awaited_ranks(Locked& locked, Task& task) const;
  std::set<int> late_ranks(Locked& locked, Task& task) const;
  /// Whether a rank was late when the group ended: it may not take what is sent to it.
  bool ended_late() const;
  std::string why_late(Locked& locked, Task& task, int rank) const;
  int awaited_here(Locked& locked) const;
  int awaited_now(Locked& locked) const;
  void reply(Locked& locked, int rank, uint64_t sequence);
  void hear_answer(Locked& locked, const Control& answer);
  void correct_answers(Locked& locked);
  void warn_of_late(Locked& locked, TimePoint now);

  Runtime& runtime_;
  const int slot_;
  uint32_t flight_ = 0;
  const Membership members_;
  const DevicePathOfGroup device_path_;
  const TimePoint begun_;
  // By rank: how many collectives it had begun when it left in good order. Nothing: it is here.
  std::vector<std::optional<uint64_t>> departed_;
  // The same of ranks that are about to leave, and begin nothing more.
  std::vector<std::optional<uint64_t>> last_calls_;
  std::set<int> half_departed_;     // whose goodbye is still to come over the private link
  uint64_t first_missed_ = kNever;  // the first collective that one of them has not begun
  std::vector<Wire> wires_;         // by rank
  std::vector<std::string> memory_refusals_;  // by rank
  std::unique_ptr<ShmMatcher> matcher_;

  std::optional<std::vector<uint64_t>> job_ranks_;  // by rank; empty: the same; nothing: in no job
  std::weak_ptr<Group> companion_;
  std::optional<Error> error_;
  bool closed_ = false;
  std::atomic<int> waiting_threads_{0};

  uint64_t sequence_ = 0;
  uint64_t oldest_ = 0;                        // none before it is in progress; see is_far_ahead
  int running_ = 0;                            // tasks that take turns and have started
  std::deque<std::shared_ptr<Task>> waiting_;  // for their turn
  std::vector<Task*> stalled_;
  std::array<uint64_t, kRemembered> calls_{};  // fingerprints of the last ones

  std::optional<Disagreement> disagreement_;
  CallProgress own_progress(Locked& locked, uint64_t sequence) const;
  const HeardProgress* heard_of(Locked& locked, Task& task, int rank) const;
  int awaited_ = -1;  // see set_awaited
  TimePoint awaited_since_{};
  TimePoint next_awaited_inquiry_{};
  std::map<int, HeardProgress> heard_;              // by rank: its last answer about a collective
  std::map<int, HeardProgress> heard_of_messages_;  // by rank: its last answer about messages
  std::map<int, UnansweredInquiries> unanswered_;   // by rank: what it has not answered since
  std::map<int, CallProgress> told_;                // by rank: the last answer to it
  TimePoint next_warning_look_{};
  TimePoint next_warning_{};
};

}  // namespace q7x2
