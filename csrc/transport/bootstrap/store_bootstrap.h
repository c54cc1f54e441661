// StoreBootstrap: how the ranks of a new group find each other through a store that outlives them.
//
// torchrun keeps one store for all restarts of a job, so a key may hold what a dead process wrote.
// Nothing in the store says whether its writer is alive. The ranks therefore confirm to each other
// that they read the same set of peer infos, in an *epoch* that no earlier process has seen:
//
//   1. Rank 0 leads. It opens the next epoch. The state of the newest epoch is one key
//      (epoch_board.h); all other keys carry the epoch, so a new leader never reads what was
//      written for an earlier one.
//   2. Every other rank reads the state, and publishes its peer info and a random nonce under the
//      epoch. If rank 0 opens a later epoch, it joins that one instead.
//   3. The ranks form a tree (gather_tree.h). Each gathers what its children have published, and
//      publishes it together with its own. Rank 0 makes of it the roster: the nonces and peer infos
//      by rank, and what it has decided for all. The roster is the next state.
//   4. A rank that finds its own nonce in the roster acknowledges it, along the tree. Then rank 0
//      commits the epoch. Every member of a committed roster was alive after the roster was
//      complete, holds the same peer infos as all others, and lets them connect.
//
// A rank that died between 2 and 4 does not acknowledge. If nobody watches it, its successor
// replaces the peer info that it left. Its parent sees the change and asks rank 0 to open a new
// epoch. A rank 0 that died leaves an epoch that is never committed, or that was committed before
// the others came; they wait for the next one.
//
//   rank 0   open epoch 4 .. gather . roster .... wait for acks . commit
//   rank 1   read the state . join ......... read . ack ............... read
//
// A rank far from the store waits for four answers: the open epoch, the roster (one for its join
// and one to read), and the commit. `set` has no answer.
//
// Who watches whom is in member_monitor.h: parents their children, and the children of rank 0 rank
// 0. So a death in 2 to 4 ends the wait of all ranks at once. A rank that cannot make its group
// reports the reason; rank 0 makes it the state of the epoch, which everybody reads. Only rank 0
// judges what it finds in an epoch: the others cannot know whether a living rank 0 has opened it.
//
// Between two questions to the store a waiting rank pauses (store_wait.h). A rank without children
// asks for the state alone.
//
// A rank uses a bounded number of its children's keys, and few others, however many ranks there
// are. If a second process joins as rank 0 while the first still waits, the first one gets an
// error.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/epoch_board.h"
#include "transport/bootstrap/gather_tree.h"
#include "transport/bootstrap/key_store.h"
#include "transport/bootstrap/late_ranks.h"
#include "transport/bootstrap/member_monitor.h"
#include "transport/bootstrap/store_wait.h"
#include "transport/peer/bootstrap_records.h"
#include "transport/trust/job_secret.h"

namespace q7x2 {

class StoreBootstrap final : public Bootstrap {
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
    std::chrono::microseconds pause{0};  ///< between two questions; 0: see StoreWait::pause_of
    /// After so long a rank looks whether a child was replaced.
    std::chrono::milliseconds slice{200};
    int branches = kGatherBranches;  ///< of the tree; the same on all ranks
    /// How long a rank that failed early, or heard of such a failure as rank 0, stays for others to
    /// tell.
    std::chrono::milliseconds patience{20'000};
    /// What is known of a rank that is missing, to be added to the error.
    std::function<std::string(int)> explain_missing = [](int) { return std::string(); };
    /// Told now and then whom rank 0 waits for in `finish`, and -1 at the end.
    std::function<void(int)> waits_for = [](int) {};
  };

  StoreBootstrap(KeyStore& store, Options options);

  Met meet(const std::string& mine, const Hooks& hooks) override;
  std::vector<std::string> exchange(const std::string& what, const std::string& mine,
                                    const Check& check) override;
  void wait_for(const std::function<int()>& missing, const Check& check) override;
  /// On rank 0, which often owns the store, it returns when no other rank needs the store any more.
  void finish(const Check& check) override;
  /// For a store whose answer is overdue: throws what a waiting rank would throw at its next pause,
  /// and asks nothing of the store.
  void attend();
  /// What this rank should raise for `failure`. A rank that has waited in vain may have waited for
  /// one that waits itself. So it gives rank 0 a moment to say who is missing.
  Error better_known(const Error& failure) noexcept;
  /// Takes some milliseconds.
  void fail(const Error& reason) noexcept override;
  /// After `fail`: stays for ranks that come later, and until those that were told have heard, for
  /// a short time. The store must not end before. `check` is called at each pause and may throw to
  /// end it. Any thread, but no other call at the same time.
  void stay(const Check& check) noexcept;

 private:
  using Phase = EpochState::Phase;
  using Clock = std::chrono::steady_clock;
  using Roster = std::map<int, JoinRecord>;  // by rank
  using Asks = StoreWait::Asks;
  using Look = StoreWait::Look;

  /// While it exists, `attend` calls `check`.
  class Heeding;

  // store_bootstrap.cpp: joining, and what is exchanged later.
  Met lead();
  bool confirmed(const Roster& roster);
  Met follow();
  void await_next_epoch();
  void await_telling();
  std::optional<Met> take_part();
  void join_tree();
  /// Whether this rank is in the roster, and what that holds.
  bool read_roster(Roster& roster, Met& met);
  void await_commit(const Roster& roster, bool among);
  void begin_epoch();
  bool look_as_leader(bool is_thorough);
  bool is_over();
  void refuse_superseded();
  std::optional<std::string> gather(const std::string& what, const std::string& own,
                                    const Look& look);
  bool wait(const Asks& asks, const Look& look, const std::string& what,
            const std::vector<int>& ranks);
  std::vector<int> missing_of(const std::string& what, const std::vector<int>& ranks);
  std::vector<int> members() const;
  Error error(ErrorCode code, const std::string& text, int rank = -1) const;
  std::string own_entry(int64_t epoch) const;
  std::string sealed(const std::string& what, const std::string& text, int64_t epoch) const;
  std::vector<std::string> opened(const std::string& what,
                                  const std::vector<std::string>& sealed) const;
  std::vector<std::string> peer_infos_of(const Roster& roster) const;
  /// Empty where a seal or the roster is wrong: all ranks find that once the epoch is committed.
  std::vector<std::string> sound_peer_infos_of(const Roster& roster) const;

  // store_bootstrap_watch.cpp: who is watched, and what follows.
  std::optional<JoinRecord> joined(int rank);
  std::optional<std::string> peer_info_of(int rank, const JoinRecord& record) const;
  void watch_leader();
  void watch_children();
  void take_child(int child, const JoinRecord& record);
  bool child_was_replaced(const Roster& roster);
  void judge(int rank, const JoinRecord& entry);
  void judge_reports();
  void heed_losses(bool asks);
  void report_losses();
  void report(const std::string& entries);

  // store_bootstrap_failure.cpp: who cannot make the group, and who must know.
  void look_up();
  bool look_for_failure(bool is_thorough);
  [[noreturn]] void raise(const std::string& record);
  bool mark(Phase phase);
  void tell_first();
  bool tell_members();
  bool tell_leader();
  void expect_to_hear(const std::vector<int>& ranks);

  KeyStore& store_;
  const Options options_;
  const std::vector<int> children_;
  const Clock::time_point deadline_;
  const std::string nonce_;  // tells this process from others of the same rank
  EpochBoard board_;
  LateRanks late_;
  StoreWait wait_;
  std::string peer_info_;
  Hooks hooks_;
  bool has_joined_ = false;        // rank 0: has opened an epoch; others: are in one
  bool has_acknowledged_ = false;  // the roster of this epoch
  // How many ranks may still join after a failure of this one, for the sake of those who have to
  // be told. None after a timeout, or where the user interrupts the join.
  int coming_;
  bool committed_ = false;
  bool over_ = false;             // it has failed, here or elsewhere, and that is known
  const Check* check_ = nullptr;  // of the exchange that waits

  std::map<int, std::string> watched_;  // by rank: the nonce on the peer info
  std::set<std::string> reported_;      // nonces
  std::optional<Error> orphaned_;       // by the death of rank 0

  // Telling, between `fail` and the end of `stay`.
  std::optional<Error> reason_;
  bool has_told_ = false;  // those who are there
  Clock::time_point tells_until_{};
  std::set<int> told_;                // ranks
  int64_t told_in_ = 0;               // the last epoch in which rank 0 was told
  std::vector<std::string> unheard_;  // keys of those that have been told
};

}  // namespace q7x2
