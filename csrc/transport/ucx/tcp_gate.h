// TcpGate: which hosts may connect to a UCX worker over TCP.
//
// UCX listens on a port of each network interface, and trusts whoever connects: such a peer can
// write to any memory of the process. So only the hosts of the job may connect.
//
//   closed   from the start: nothing listens. This remains so in a process whose peers are all on
//            its host and share memory with it.
//   open     UCX listens. The kernel drops packets of hosts that were not admitted.
//
// The listening sockets are those that were created with the worker and whose ports are in its
// address. While the gate is closed, each of them is replaced by a listening Unix socket without a
// name: under the same number, in UCX's epoll set. The TCP socket keeps its options and its port.
//
// If UCX cannot accept a connection because the process can open no more files, it gives up the
// listener for good. So UCX does not poll the listeners while files are scarce (`heed_files`); the
// kernel keeps new connections meanwhile.
#pragma once

#include <sys/epoll.h>
#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "transport/net/host_addresses.h"

namespace q7x2 {

/// Numbers of the TCP sockets of this process that listen.
std::set<int> listening_sockets();

class TcpGate {
 public:
  /// Constructs a closed gate. `before`: the sockets that listened before the worker was made.
  /// `address`: the worker's. Throws Error(kTransport).
  TcpGate(const std::set<int>& before, const std::string& address);

  /// Opens the gate to these hosts and to no others. `worker`: its epoll descriptor; connections of
  /// other hosts are shut down. Throws Error(kTransport), also if another process has taken the
  /// port.
  void open(int worker, const HostAddresses& hosts);
  /// To be called now and then.
  void heed_files();

  bool is_open() const { return is_open_; }

 private:
  struct Listener {
    int number = -1;  // UCX's number for it
    int epoll = -1;   // UCX's epoll descriptor; -1: not found
    epoll_event watch{};
    ino_t inode = 0;
    OwnedFd socket;  // bound to the port while the gate is closed
  };

  static void close(Listener& listener);
  static void open(Listener& listener, const HostAddresses& hosts);
  static bool is_there(const Listener& listener);

  std::vector<Listener> listeners_;
  bool is_open_ = false;
  bool is_resting_ = false;
};

}  // namespace q7x2
