// ServerRoll: how servers, processes of a job without a rank, are found through the job's store.
//
// A server takes a number from a counter in the store, below all prefixes, and announces itself
// under it. Rank 0 of a new group reads the counter: one call to the store, and the only one if
// there are no servers. Else it invites those that have announced themselves:
//
//   rank 0                                        server 3
//   invitation: meeting, group    ------------->  looks every few milliseconds
//   waits for a short time        <-------------  has come: its peer info
//   list: ranks, servers 1 and 3  ------------->  is it on the list? then it meets the ranks
//
// A server may have taken its number and not have said who it is yet: rank 0 waits for that, too. A
// server that does not come in time is given up, and named in the log. If it lives, it finds that
// it is not on the list, and announces itself anew. One that had said nothing comes to a later
// group. A server that leaves says so in the store, and is not invited any more. The numbers of
// servers that have left or died are not used again.
//
// The texts are sealed (transport/trust/job_secret.h). A server with another secret is invited like
// the others, cannot read the invitation, and ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/bootstrap/key_store.h"
#include "transport/peer/peer_info.h"
#include "transport/trust/job_secret.h"

namespace q7x2 {

/// What the members of a server group have to know before they meet.
struct ServerMeeting {
  struct Server {
    int64_t number = 0;
    std::string name;
    PeerInfo peer_info;  ///< see peer_info_of_process
  };

  std::string key;              ///< random
  std::string group;            ///< the name of the group that the servers serve
  std::vector<PeerInfo> ranks;  ///< of that group, by rank
  std::vector<Server> servers;  ///< in the order of their members

  std::vector<std::string> names() const;  ///< of the servers
  std::string encode() const;
  /// Throws Error(kMismatch) where `bytes` is no meeting.
  static ServerMeeting decode(std::string_view bytes);
};

/// Rank 0's side.
class ServerRoll {
 public:
  struct Options {
    std::chrono::milliseconds patience{2000};  ///< for servers that do not come
    std::function<void(const std::string&)> warn = [](const std::string&) {};
    std::function<void()> attend = [] {};  ///< called at each pause; may throw
    /// Whether it is known that this process has ended: it need not be waited for.
    std::function<bool(uint64_t)> has_ended = [](uint64_t) { return false; };
  };

  /// `root`: the store below all prefixes. Both must stay.
  ServerRoll(KeyStore& root, const JobSecret& secret) : root_(root), secret_(secret) {}

  /// Whether any server has ever come. One question.
  bool is_used();
  /// Invites all servers of the job to serve the new group of these ranks. Nothing: there are none.
  std::optional<ServerMeeting> invite(const std::string& group, std::vector<PeerInfo> ranks,
                                      const Options& options);

 private:
  using Server = ServerMeeting::Server;

  /// Numbers of servers that are there, as far as is known.
  std::vector<int64_t> present(int64_t count);
  /// Invites those of `expected` that have announced themselves, and takes their numbers out.
  std::vector<Server> invite_announced(std::vector<int64_t>& expected, const std::string& meeting,
                                       const Options& options);
  /// Without its peer info. Nothing: it is not wanted.
  std::optional<Server> announced(int64_t number, const Options& options);
  void give_up(const Server& server, const std::string& group, const Options& options);
  void give_up_silent(int64_t number, const std::string& group, const Options& options);

  KeyStore& root_;
  const JobSecret& secret_;
};

/// A server's side.
class ServerSeat {
 public:
  /// `root` and `secret` must stay. `peer info`: this process's.
  ServerSeat(KeyStore& root, const JobSecret& secret, std::string name, PeerInfo peer_info);

  int64_t number() const { return number_; }
  const std::string& name() const { return name_; }
  /// The next invitation, if there is one: the key of its meeting. The server has said then that it
  /// comes. Throws Error(kMismatch) if the job has another secret.
  std::optional<std::string> look();
  /// No group that is made from now on invites this server.
  void leave();
  /// For a server that was given up: it takes another number.
  void announce();

  /// The list of a meeting, as soon as it is there. Does not change the seat.
  static std::optional<ServerMeeting> list_of(KeyStore& root, const JobSecret& secret,
                                              const std::string& meeting);

 private:
  KeyStore& root_;
  const JobSecret& secret_;
  const std::string name_;
  const PeerInfo peer_info_;
  int64_t number_ = 0;
  int64_t next_ = 1;  // invitation
};

}  // namespace q7x2
