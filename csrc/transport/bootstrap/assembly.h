// Assembly: processes that know each other's handles make a group without a store.
//
// The store of a job may be gone together with the process that served it. An assembly needs none:
// its members are a list of handles, the same on all of them, under a *uuid* that is used once. The
// rank of a member is its place in the list. The members exchange what a group needs (it is the
// Exchange of a WireUp) by dissemination, so each of them connects to ceil(log2 n) others.
//
//   member 0   uuid 7, [0, 1, 2] --pieces--> 1     --pieces--> 2
//   member 1   (busy; what comes is kept)  uuid 7, [0, 1, 2] --pieces--> 2 ...
//
// - Members may begin at any time within the timeout. What arrives before is kept.
// - Who waits for long asks, and whoever is asked sends the pieces again or says whom it waits for.
//   So no message needs to arrive the first time: a connection that broke between two living
//   processes is opened again. At the deadline the error names the member that did not come.
// - A member whose process has ended fails the assembly at once.
// - Each message carries a digest of the list. Members with different lists fail, and the error has
//   both lists. Round 0 finds it: somewhere a member sends to one that holds another list.
// - A failure is told to the members that this one exchanges with. They fail too, and pass it on.
// - A uuid is used from the moment an assembly begins. A process that uses it again gets an error
// at
//   once, and a process that did not know is told by the first member that it sends to.
// - All survivors end alike, whoever dies and when (assembly_agreement.cpp).
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
#include "transport/bootstrap/assembly_message.h"
#include "transport/bootstrap/assembly_table.h"
#include "transport/bootstrap/dissemination.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {

class Runtime;

class Assembly {
 public:
  using Check = std::function<void()>;
  using Prepare = std::function<void(const std::vector<std::string>& all)>;

  struct Options {
    std::string title;  ///< begins all messages: "reconfigure with the uuid '7'"
    std::string scope;  ///< within which the uuid must be new
    std::string uuid;
    std::vector<PeerInfo> members;         ///< by rank, this process among them
    std::string list;                      ///< the members as the user knows them, for messages
    std::chrono::milliseconds timeout{0};  ///< of everything, from now on
    Check check_interrupt = [] {};         ///< called now and then; may throw to end a wait
    /// "rank 3 (pid 41 on host a)". Empty: by the number in `members`.
    std::function<std::string(int)> describe = {};
  };

  /// Throws Error(kInvalidArgument) where the uuid was used before in this process, this process is
  /// no member, or a process is one twice. Then nothing was sent.
  Assembly(Runtime& runtime, Options options);
  /// Tells the others if it was not finished.
  ~Assembly();
  Assembly(const Assembly&) = delete;
  Assembly& operator=(const Assembly&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(options_.members.size()); }

  /// See Exchange in transport/bootstrap/wire_up.h. Throws Error: kTimeout, kPeerFailed, kMismatch
  /// if the members have different lists, kInvalidArgument if another member has used the uuid
  /// before, or what another member told by `fail`. There is nothing to prepare: the members let
  /// each other connect from the beginning.
  std::vector<std::string> exchange(const std::string& what, const std::string& mine,
                                    const Check& check, const Prepare& prepare = {});
  /// See Await in transport/bootstrap/wire_up.h. Throws like an exchange.
  void wait_for(const std::function<int()>& missing, const Check& check);
  /// Runs `make`, which makes the group by this assembly, and agrees with the other members whether
  /// all have it. If not, `abort` is called, and all survivors throw, each at once: what its own
  /// `make` has thrown, or what another member has told. A member that is interrupted, or whose
  /// time is over, after its `make` has ended does not know how the others end.
  void run(const std::function<void()>& make, const std::function<void(const Error&)>& abort);
  /// All went well: nobody is told anything when it goes.
  void finish() { finished_ = true; }
  /// Tells the other members why there will be no group. Once.
  void fail(const Error& error) noexcept;

 private:
  using Round = std::pair<std::string, int>;  // exchange and round
  // Far longer than a message takes between members that are there.
  static constexpr std::chrono::milliseconds kAskPeriod{300};
  // A process that cannot be reached so often in a row is taken to be dead.
  static constexpr int kMostReopened = 3;

  // assembly_agreement.cpp
  void agree();
  bool lead();
  void hear(const AssemblyMessage& message);
  int first_alive();
  bool is_gone(int member);
  void ask_for_votes();
  std::optional<int> member_of(uint64_t process) const;

  /// Asks the members that this one exchanges with to let it connect. Once.
  void ask_to_be_admitted(const Check& check);
  bool is_of_this_host(const PeerInfo& member) const;
  std::string receive(const Round& round, int from, const Check& check);
  void read();
  void take(const AssemblyMessage& message);
  bool is_partner(const AssemblyMessage& message) const;
  void watch(const Round& round, int from);
  void send(int member, std::string_view message);
  void ask(const Round& round, int member);
  /// Whether another member is on this host.
  bool shares_host() const;
  void look_around(const Check& check);
  AssemblyMessage message(AssemblyKind kind, const Round& round = {}) const;
  std::vector<int> neighbours() const;
  std::string describe(int member) const;
  Error error(ErrorCode code, const std::string& text, int member = -1) const;
  [[noreturn]] void refuse_list(const AssemblyMessage& message);

  Runtime& runtime_;
  const Options options_;
  const std::chrono::steady_clock::time_point deadline_;
  const int rank_;
  const Dissemination rounds_;
  AssemblyMessage stamp_;
  AssemblyInbox inbox_;
  std::map<Round, std::map<uint64_t, std::string>> arrived_;  // packed pieces, by process
  std::vector<PeerInfo> strangers_;                           // that have another list
  std::map<int, int> reopened_;                               // connections, by member
  Round awaited_;                                             // that this one waits for now
  int culprit_ = -1;        // whom the member that this one waits for waits for itself
  AssemblyMessage answer_;  // to those that use the uuid when this is over
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
