// Rendezvous: how the ranks of a new group find each other through a store that outlives them.
//
// torchrun keeps one store for all restarts of a job, so a key may hold what a dead process wrote.
// Nothing in the store says whether its writer is alive. The ranks therefore confirm to each other
// that they read the same set of peer infos, in an *epoch* that no earlier process has seen:
//
//   1. Rank 0 leads. It takes the next epoch from an atomic counter and opens it. All keys below
//      carry the epoch, so a new leader never reads what was written for an earlier one.
//   2. Every other rank reads the counter and publishes its peer info and a random nonce under the
//      epoch. If rank 0 opens a later epoch, it joins that one instead.
//   3. The ranks form a tree (rendezvous_tree.h). Each gathers what its children have published,
//      and publishes it together with its own. Rank 0 publishes what it gathered: the roster, with
//      the nonces and peer infos by rank.
//   4. A rank that finds its own nonce in the roster acknowledges it, by a counter. The last one
//      tells rank 0, which commits the epoch. Every member of a committed roster was alive after
//      the roster was complete, holds the same peer infos as all others, and lets them connect.
//
// A rank that died between 2 and 4 does not acknowledge. If nobody watches it, its successor
// replaces the peer info that it left. Its parent sees the change and asks rank 0 to open a new
// epoch. A rank 0 that died leaves an epoch that is never committed, or that was committed before
// the others came; they wait for the next one.
//
//   rank 0   epoch 4 .. open ......... gather . roster ....... wait for acks . commit
//   rank 1     .... join epoch 3 ... join epoch 4 .. read, ack ............. read
//              (of a dead rank 0)
//
// Who watches whom is in member_monitor.h: parents their children, and the children of rank 0 rank
// 0. So a death in 2 to 4 ends the wait of all ranks at once. A rank that cannot make its group
// joins with the reason instead of a peer info; rank 0 tells it to everybody who joined. Only rank
// 0 judges what it finds in an epoch: the others cannot know whether a living rank 0 has opened it.
//
// Between two looks at the store a waiting rank pauses (`pause_of`). Each time it asks for the keys
// it waits for, and for one counter, the epoch's *news*, which grows when something has happened
// that concerns all. A rank with children also asks for each one that has not joined.
//
// A rank uses at most 32 keys of its children to join, 16 for each other exchange, and 20 others,
// however many ranks there are. If a second process joins as rank 0 while the first still waits,
// the first one gets an error.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/bootstrap/gather_tree.h"
#include "transport/bootstrap/member_monitor.h"
#include "transport/bootstrap/rendezvous_records.h"
#include "transport/trust/job_secret.h"

namespace q7x2 {

/// What the rendezvous needs of a key-value store. Every call may throw Error(kTransport).
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Adds to a counter, which is 0 at first, and returns the sum. Atomic.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  virtual bool check(const std::string& key) = 0;
  /// The values of keys that exist.
  virtual std::vector<std::string> get(const std::vector<std::string>& keys) = 0;
  /// False: some key does not exist after `timeout`, which is short.
  virtual bool wait(const std::vector<std::string>& keys, std::chrono::microseconds timeout) = 0;
};

class Rendezvous {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string group;  ///< its name
    JobSecret secret{""};
    std::chrono::milliseconds timeout{0};  ///< of everything, from construction on
    /// Called at each pause; may throw to end the wait.
    std::function<void()> check_interrupt = [] {};
    /// Watches processes until the epoch is committed. Null: nobody is watched.
    MemberMonitor* monitor = nullptr;
    std::chrono::microseconds pause{0};  ///< between two looks; 0: `pause_of(size)`
    /// After so long a rank looks around thoroughly, also without news.
    std::chrono::milliseconds slice{200};
    int branches = kTreeBranches;  ///< of the tree; the same on all ranks
    /// How long a rank that failed early, or heard of such a failure as rank 0, stays for others to
    /// tell.
    std::chrono::milliseconds patience{20'000};
    /// What is known of a rank that is missing, to be added to the error.
    std::function<std::string(int)> explain_missing = [](int) { return std::string(); };
  };
  /// Called at each pause, like `check_interrupt`, while one exchange waits.
  using Check = std::function<void()>;
  /// Called with what all ranks gave.
  using Prepare = std::function<void(const std::vector<std::string>& all)>;

  Rendezvous(KeyStore& store, Options options);

  /// How long a rank pauses between two looks at the store: 5 ms for up to 8 ranks, which may all
  /// be on one host; 20 ms from 32 ranks on; and then as long as keeps the store at 50,000 calls
  /// per second, at three calls per look and rank.
  static std::chrono::microseconds pause_of(int size);

  /// Gives `mine` to all ranks and returns what each gave, by rank. The first exchange is the one
  /// in which the ranks find each other; `mine` is the peer info then. Throws Error: kTimeout if
  /// ranks are missing, kMismatch if processes disagree about who is which rank, kPeerFailed if a
  /// process ended, else what another rank told by `fail`. What the ranks give is sealed for the
  /// epoch: kMismatch if a seal is not that of the job. `prepare`, if there is one, is called in
  /// the first exchange before any rank returns from it.
  std::vector<std::string> exchange(const std::string& what, const std::string& mine,
                                    const Check& check, const Prepare& prepare = {});
  /// Waits for something that is not in the store: until `missing`, which names a rank that is
  /// waited for, returns -1. Throws like an exchange.
  void wait_for(const std::function<int()>& missing, const Check& check);
  /// The last call of every rank that succeeded. On rank 0, which often owns the store, it returns
  /// when no other rank needs the store any more; `waits_for` is told now and then which one does,
  /// and -1 at the end.
  void finish(
      const Check& check, const std::function<void(int)>& waits_for = [](int) {});
  /// For a store whose answer is overdue: throws what a waiting rank would throw at its next pause,
  /// and asks nothing of the store.
  void attend();
  /// What this rank should raise for `failure`. A rank that has waited in vain may have waited for
  /// one that waits itself. So it gives rank 0 a moment to say who is missing.
  Error better_known(const Error& failure) noexcept;
  /// Tells the other ranks why this one cannot make the group, as far as they are there. Takes some
  /// milliseconds.
  void fail(const Error& reason) noexcept;
  /// After `fail`: stays for ranks that come later, and until those that were told have heard, for
  /// a short time. The store must not end before. `check` is called at each pause and may throw to
  /// end it. Any thread, but no other call at the same time.
  void stay(const Check& check) noexcept;

 private:
  /// Looks around at a pause. `is_thorough`: there is news, or a slice is over. True: the wait is
  /// pointless.
  using Look = std::function<bool(bool is_thorough)>;
  using Roster = std::map<int, JoinRecord>;  // by rank
  using TimePoint = std::chrono::steady_clock::time_point;

  /// While it exists, `attend` calls `check`.
  class Heeding {
   public:
    Heeding(Rendezvous& rendezvous, const Check& check) : rendezvous_(rendezvous) {
      rendezvous_.check_ = &check;
    }
    ~Heeding() { rendezvous_.check_ = nullptr; }
    Heeding(const Heeding&) = delete;
    Heeding& operator=(const Heeding&) = delete;

   private:
    Rendezvous& rendezvous_;
  };

  // rendezvous.cpp: joining.
  std::vector<std::string> join(const std::string& mine, const Prepare& prepare);
  std::vector<std::string> lead();
  bool confirmed(const Roster& roster);
  std::vector<std::string> follow();
  void enter(int64_t epoch);
  std::optional<std::vector<std::string>> take_part();
  bool await(const std::string& what, const Check& also);
  void await_opening();
  bool is_over();
  bool superseded();
  void refuse_if_superseded();
  Error error(ErrorCode code, const std::string& text, int rank = -1) const;
  std::string own_entry() const;
  std::string sealed(const std::string& what, const std::string& text) const;
  std::vector<std::string> opened(const std::string& what,
                                  const std::vector<std::string>& sealed) const;
  std::vector<std::string> peer_infos_of(const Roster& roster) const;
  /// Nothing: its seal is not that of the job.
  std::optional<std::string> peer_info_of(int rank, const JoinRecord& record) const;
  void prepare(const Roster& roster) const;
  static std::string key_in(int64_t epoch, const std::string& what);
  std::string key(const std::string& what) const;
  std::string key(const std::string& what, int rank) const;
  std::vector<int> members() const;

  // rendezvous_wait.cpp: waiting, and who is missing.
  bool wait(const std::vector<std::string>& keys, const Look& look, const std::string& what,
            const std::vector<int>& ranks);
  std::vector<int> missing_of(const std::string& what, const std::vector<int>& ranks);
  TimePoint warning_due() const;
  void warn_of(const std::vector<int>& ranks) const;
  void ask(const std::vector<int>& ranks) const;
  std::string late_behind(const std::vector<int>& ranks) const;
  Error late(const std::vector<int>& ranks, const std::string& what) const;
  int first_missing(const std::string& what);

  // rendezvous_tree.cpp: the tree.
  std::optional<std::string> gather(const std::string& what, const std::string& own,
                                    const Look& look);
  void count(const std::string& what, const std::string& all);
  std::optional<JoinRecord> joined(int rank);
  bool child_was_replaced(const Roster& roster);
  void report_bad_children();
  void judge(int rank, const JoinRecord& entry);
  void judge_reports();

  // rendezvous_watch.cpp: who is watched, and what follows.
  bool heard_news();
  void spread_news();
  void watch_leader();
  void watch_children();
  void heed_losses(bool asks);
  void report_losses();
  void check_for_orphans();
  bool is_orphaned() const;

  // rendezvous_failure.cpp: who cannot make the group, and who must know.
  void look_up();
  bool look_for_failure(bool is_thorough);
  [[noreturn]] void raise(const std::string& record);
  void tell_first();
  bool tell_members();
  bool tell_leader();
  void expect_to_hear(const std::vector<int>& ranks);

  static constexpr const char* kEpochs = "q7x2/epochs";
  static constexpr const char* kCannot = " could not make the group '";

  KeyStore& store_;
  const Options options_;
  const std::vector<int> children_;
  const TimePoint deadline_;
  const std::string nonce_;  // tells this process from others of the same rank
  std::string peer_info_;
  Prepare prepare_;
  int64_t epoch_ = 0;        // the newest that this rank has seen
  int64_t news_ = 0;         // of this epoch, as far as they were heard
  bool has_joined_ = false;  // rank 0: has opened an epoch; others: are in one
  // How many ranks may still join after a failure of this one, for the sake of those who have to
  // be told. None after a timeout, or where the user interrupts the join.
  int coming_;
  bool committed_ = false;
  bool over_ = false;             // it has failed, here or elsewhere, and that is known
  const Check* check_ = nullptr;  // of the exchange that waits

  std::map<int, std::string> watched_;  // by rank: the nonce on the peer info
  std::set<std::string> reported_;      // nonces
  bool was_orphaned_ = false;           // the epoch, before this rank joined it
  std::optional<Error> orphaned_;       // by the death of rank 0

  // Telling, between `fail` and the end of `stay`.
  std::optional<Error> reason_;
  bool has_told_ = false;  // those who are there
  TimePoint tells_until_{};
  std::set<int> told_;                // ranks
  int64_t told_in_ = 0;               // the last epoch in which rank 0 was told
  std::vector<std::string> unheard_;  // keys of those that have been told
};

}  // namespace q7x2
