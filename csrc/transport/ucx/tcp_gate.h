// TcpGate: who may connect to a UCX worker over TCP.
//
// UCX listens on a port of each network interface, and believes whoever connects: such a peer can
// write to any memory of the process. So nobody may connect but the hosts of the job.
//
//   closed   from the start: nothing listens. A process whose peers are all on its host, where
//            they share memory, stays so.
//   open     UCX listens. The kernel drops packets of hosts that were not admitted.
//
// The listening sockets are those that came with the worker and whose ports are in its address.
// While the gate is closed, UCX has a listening Unix socket without a name in the place of each:
// under the same number, in the same epoll set. The TCP socket keeps its options and its port.
//
// UCX gives up a listener for good if it cannot accept a connection because the process can open no
// more files. So UCX does not look at the listeners while files are scarce (`heed_files`); the
// kernel keeps what connects meanwhile.
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
  /// Closed. `before`: the sockets that listened before the worker was made. `address`: the
  /// worker's. Throws Error(kTransport).
  TcpGate(const std::set<int>& before, const std::string& address);

  /// Opens the gate to these hosts and to no others. `worker`: its epoll descriptor; connections of
  /// others are shut down. Throws Error(kTransport), also if another process has taken the port.
  void open(int worker, const HostAddresses& hosts);
  /// To be called now and then.
  void heed_files();

  bool is_open() const { return is_open_; }

 private:
  struct Listener {
    int number = -1;  // by which UCX knows it
    int epoll = -1;   // of UCX; -1: not found
    epoll_event watch{};
    ino_t inode = 0;
    OwnedFd socket;  // while the gate is closed: bound to the port
  };

  static void close(Listener& listener);
  static void open(Listener& listener, const HostAddresses& hosts);
  static bool is_there(const Listener& listener);

  std::vector<Listener> listeners_;
  bool is_open_ = false;
  bool is_resting_ = false;
};

}  // namespace q7x2
