// PrivateSocket: a socket that forked children do not keep.
//
// The kernel tells the other end that a connection has ended when the last copy of the socket is
// closed. The workers of a data loader are forked copies of the process, and may outlive it by
// seconds. So a child closes its copies as soon as it is forked. A child that is made by the system
// call alone does not. Sockets that even such a child must not have belong to a thread with its own
// file table.
#pragma once

#include <initializer_list>

namespace q7x2 {

/// From now on the calling thread has its own file table, with only `kept` and the standard error
/// in it. Forks by other threads do not copy what it opens, and other threads cannot use it. Its
/// files are closed when the process ends, also by `exec`. Returns false if the kernel refuses;
/// then nothing has changed.
bool own_files(std::initializer_list<int> kept);

/// If a thread with its own file table owns it, no other thread may use it.
class PrivateSocket {
 public:
  PrivateSocket() = default;
  ~PrivateSocket() { close(); }
  PrivateSocket(PrivateSocket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  PrivateSocket& operator=(PrivateSocket&& other) noexcept;

  /// A non-blocking stream socket of this address family. Invalid if that fails; errno says why.
  static PrivateSocket open(int family);
  /// The next connection that has arrived, also non-blocking. Invalid if there is none or it cannot
  /// be accepted; errno says which.
  PrivateSocket accept() const;

  void close();
  bool is_valid() const { return fd_ >= 0; }
  operator int() const { return fd_; }

 private:
  explicit PrivateSocket(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace q7x2
