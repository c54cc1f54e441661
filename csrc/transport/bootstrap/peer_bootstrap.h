// PeerBootstrap: processes that know each other make a group without a store.
//
// The members of a living group know each other's peer infos, and handles carry them
// (peer_address.h). A bootstrap has a list of them, the same on all members, and a *key* that tells
// it from others. The rank of a member is its place in the list. The members exchange what a group
// needs by dissemination (dissemination.h), over the connections that they have or would have
// anyway. So each of them connects to ceil(log2 n) others, and an exchange takes as many messages
// one after the other: half a round trip for two members, one for four.
//
//   member 0   key 7, [0, 1, 2] --pieces--> 1     --pieces--> 2
//   member 1   (busy; what comes is kept)  key 7, [0, 1, 2] --pieces--> 2 ...
//
// - Members may begin at any time within the timeout. What arrives before is kept.
// - Who waits for long asks, and whoever is asked sends the pieces again or says whom it waits for.
//   So no message needs to arrive the first time: a connection that broke between two living
//   processes is opened again. At the deadline the error names the member that did not come.
// - A member whose process has ended fails the bootstrap at once.
// - Each message carries a digest of the list. Members with different lists fail, and the error has
//   both lists. Round 0 finds it: somewhere a member sends to one that holds another list.
// - A failure is told to the members that this one exchanges with. They fail too, and pass it on.
// - The name of a group may come again, because the group was destroyed or could not be made. So
// its
//   bootstraps are counted: the key has *attempts*. A member that has failed where others still
//   wait, and tries again, takes them along.
// - A uuid, as reconfigure has, is used once, from the moment a bootstrap begins. A process that
//   uses it again gets an error at once, and a process that did not know is told by the first
//   member that it sends to.
// - Where old groups end with the new one's beginning, all survivors end alike, whoever dies and
//   when: `run` (peer_bootstrap_agreement.cpp).
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
#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/dissemination.h"
#include "transport/bootstrap/late_ranks.h"
#include "transport/bootstrap/member_monitor.h"
#include "transport/peer/bootstrap_message.h"
#include "transport/peer/bootstrap_table.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {

class Runtime;

class PeerBootstrap final : public Bootstrap {
 public:
  struct Options {
    std::string title;  ///< begins all messages: "reconfigure with the uuid '7'"
    std::string scope;  ///< within which the name must be new
    std::string name;
    bool is_repeatable = false;            ///< the same name may come again
    std::vector<PeerInfo> members;         ///< by rank, this process among them
    std::string list;                      ///< the members as the user knows them, for messages
    std::chrono::milliseconds timeout{0};  ///< of everything, from now on
    Check check_interrupt = [] {};         ///< called now and then; may throw to end a wait
    /// "rank 3 (pid 41 on host a)". Empty: by the number in `members`.
    std::function<std::string(int)> describe = {};
    MemberMonitor* monitor = nullptr;  ///< knows of deaths of any member; null: of neighbours only
    /// Which members have not begun; empty: nobody knows. Null: the member that this one waits for
    /// is named alone.
    std::function<std::vector<int>()> missing = {};
    std::function<std::string(int)> explain_missing = [](int) { return std::string(); };
  };

  /// Throws Error(kInvalidArgument) where a name that is not repeatable was used before in this
  /// process, this process is no member, or a process is one twice. Then nothing was sent.
  PeerBootstrap(Runtime& runtime, Options options);
  /// Tells the others if it was not finished.
  ~PeerBootstrap() override;
  PeerBootstrap(const PeerBootstrap&) = delete;
  PeerBootstrap& operator=(const PeerBootstrap&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(options_.members.size()); }

  /// There is nothing to prepare: the members let each other connect from the beginning. And nobody
  /// knows of all first: nothing is decided.
  Met meet(const std::string& mine, const Hooks& hooks) override;
  /// Throws Error: kTimeout, kPeerFailed, kMismatch if the members have different lists,
  /// kInvalidArgument if another member has used the name before, or what another member told by
  /// `fail`.
  std::vector<std::string> exchange(const std::string& what, const std::string& mine,
                                    const Check& check) override;
  void wait_for(const std::function<int()>& missing, const Check& check) override;
  /// Runs `make`, which makes the group by this bootstrap, and agrees with the other members
  /// whether all have it. If not, `abort` is called, and all survivors throw, each at once: what
  /// its own `make` has thrown, or what another member has told. A member that is interrupted, or
  /// whose time is over, after its `make` has ended does not know how the others end.
  void run(const std::function<void()>& make, const std::function<void(const Error&)>& abort);
  /// All went well: nobody is told anything when it goes.
  void finish(const Check&) override { finished_ = true; }
  /// Tells the other members why there will be no group. Once.
  void fail(const Error& error) noexcept override;

 private:
  using Round = std::pair<std::string, int>;  // exchange and round
  // Far longer than a message takes between members that are there.
  static constexpr std::chrono::milliseconds kAskPeriod{300};
  // A process that cannot be reached so often in a row is taken to be dead.
  static constexpr int kMostReopened = 3;

  // peer_bootstrap_agreement.cpp, with `run` and `fail`
  void agree();
  bool lead();
  void hear(const BootstrapMessage& message);
  int first_alive();
  bool is_gone(int member);
  void ask_for_votes();
  std::optional<int> member_of(uint64_t process) const;

  /// Asks the members that this one exchanges with to let it connect. Once.
  void ask_to_be_admitted(const Check& check);
  void call_who_cannot(Locked& locked);
  bool is_of_this_host(const PeerInfo& member) const;
  std::string receive(const Round& round, int from, const Check& check);
  /// Another member has gone on to a later attempt, and this one with it.
  struct LaterAttempt {};
  void read();
  void go_on(const BootstrapMessage& message);
  void take(const BootstrapMessage& message);
  bool is_partner(const BootstrapMessage& message) const;
  void watch(const Round& round, int from);
  void send(int member, std::string_view message);
  void ask(const Round& round, int member);
  /// Whether another member is on this host.
  bool shares_host() const;
  void heed_losses();
  std::vector<int> missing() const;
  /// The deadline is over: `what` says what was waited for.
  Error late(const std::string& what);
  void look_around(const Check& check);
  BootstrapMessage message(BootstrapKind kind, const Round& round = {}) const;
  std::vector<int> neighbours() const;
  std::string describe(int member) const;
  Error error(ErrorCode code, const std::string& text, int member = -1) const;
  std::string attempt() const;
  [[noreturn]] void refuse_list(const BootstrapMessage& message);

  Runtime& runtime_;
  const Options options_;
  const std::chrono::steady_clock::time_point deadline_;
  const int rank_;
  const Dissemination rounds_;
  LateRanks late_;
  BootstrapMessage stamp_;
  BootstrapInbox inbox_;
  std::map<Round, std::map<uint64_t, std::string>> arrived_;  // packed pieces, by process
  std::vector<PeerInfo> strangers_;                           // that have another list
  std::map<int, int> reopened_;                               // connections, by member
  Round awaited_;                                             // that this one waits for now
  int culprit_ = -1;         // whom the member that this one waits for waits for itself
  BootstrapMessage answer_;  // to those that use the key when this is over
  bool has_met_ = false;
  bool finished_ = false;
  bool has_asked_ = false;  // to be let connect

  // The agreement.
  bool has_voted_ = false;
  bool is_committed_ = false;
  bool is_in_doubt_ = false;  // this member does not know how the others end
  int leader_ = 0;
  std::set<int> ready_;        // members that have voted
  std::map<int, Error> gone_;  // and why
};

}  // namespace q7x2
