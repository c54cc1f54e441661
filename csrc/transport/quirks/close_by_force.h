// CloseByForce: the work-around for a connection of UCX that is closed by force during a message.
//
// UCX (at least 1.13 to 1.22) keeps such a TCP connection, with nothing to send, until the peer
// closes it as well. It polls whether the socket has room, and so wakes its worker without end. If
// the peer's end of the connection arrives while there is room, UCX frees the connection and then
// uses it once more, which ends the process. And the next connection to the same peer reuses the
// socket, whose last message is incomplete. So the socket must be shut down; UCX treats that as an
// end, which it handles well.
//
// UCX does not say which socket this is. /proc/self/fdinfo of the worker's epoll descriptors lists
// UCX's sockets, which of them wait for room because they are in the middle of a message, and where
// UCX keeps its record of each. These sockets are not polled while one connection is closed. The
// closed connection has lost a bit of its flags: the one that says that it sends. A connection that
// is still being made may gain a bit meanwhile, because it also receives from the peer's own
// connection from then on.
#pragma once

#include <sys/epoll.h>
#include <sys/types.h>

#include <array>
#include <vector>

namespace q7x2 {

/// Must exist from before the close until UCX has progressed the worker a few times.
class CloseByForce {
 public:
  /// `worker`: its epoll descriptor.
  explicit CloseByForce(int worker);
  ~CloseByForce();
  CloseByForce(const CloseByForce&) = delete;
  CloseByForce& operator=(const CloseByForce&) = delete;

  /// Whether some connection is in the middle of a message; otherwise there is nothing to do.
  bool matters() const { return !sockets_.empty(); }

 private:
  /// The first bytes of UCX's record of a connection: its state, its flags and its socket. They do
  /// not include how much of a message has been sent.
  using Record = std::array<unsigned char, 20>;
  static bool has_lost_a_bit(const Record& before, const Record& now);
  struct Socket {
    int epoll;  // the epoll descriptor that watches the socket
    int socket;
    epoll_event watch;
    ino_t inode;
    Record record;
  };

  std::vector<Socket> sockets_;
};

}  // namespace q7x2
