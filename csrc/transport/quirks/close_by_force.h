// CloseByForce: what a connection of UCX needs that is closed by force in the middle of a message.
//
// UCX (1.13 to 1.22 at least) keeps such a TCP connection, without anything to send, until the peer
// closes it as well. It asks whether the socket has room, and so wakes its worker without end. If
// the end that the peer sends arrives while there is room, UCX frees the connection and then uses
// it once more, which ends the process. And the next connection to the same peer takes over the
// socket, whose last message is incomplete. So its socket must be shut down; UCX takes that as an
// end, which it handles well.
//
// UCX does not tell which socket that is. /proc/self/fdinfo of the worker's epoll descriptors tells
// what sockets UCX has, which of them wait for room, because they are in the middle of a message,
// and where UCX keeps its record of each. Those are not watched while one connection is closed. The
// one that was closed has lost a bit of its flags: the one that says that it sends. One that is
// still connecting may gain a bit meanwhile, because it also receives from the peer's own
// connection from then on.
#pragma once

#include <sys/epoll.h>
#include <sys/types.h>

#include <array>
#include <vector>

namespace q7x2 {

/// It exists from before the close until UCX has progressed the worker a few times.
class CloseByForce {
 public:
  /// `worker`: its epoll descriptor.
  explicit CloseByForce(int worker);
  ~CloseByForce();
  CloseByForce(const CloseByForce&) = delete;
  CloseByForce& operator=(const CloseByForce&) = delete;

  /// Whether some connection is in the middle of a message; else nothing is to be done.
  bool matters() const { return !sockets_.empty(); }

 private:
  /// The first bytes of UCX's record of a connection: its state, its flags and its socket, but not
  /// how much of a message has been sent.
  using Record = std::array<unsigned char, 20>;
  static bool has_lost_a_bit(const Record& before, const Record& now);
  struct Socket {
    int epoll;  // the descriptor that watches it
    int socket;
    epoll_event watch;
    ino_t inode;
    Record record;
  };

  std::vector<Socket> sockets_;
};

}  // namespace q7x2
