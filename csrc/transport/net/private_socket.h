// PrivateSocket: a socket that forked children do not keep.
//
// The kernel tells the other end that a connection is over when the last copy of the socket is
// closed. A data loader's workers are forked copies, and they may outlive the process by seconds.
// So a child closes its copies as soon as it is forked. A child that is made by the system call
// alone does not. What even such a child must not have belongs to a thread with files of its own.
#pragma once

#include <initializer_list>

namespace q7x2 {

/// From now on the calling thread has files of its own: none but `kept`, and the standard error. No
/// fork by another thread copies what it opens, and no other thread can use it. It ends with the
/// process, also by `exec`. False if the kernel refuses; then nothing has changed.
bool own_files(std::initializer_list<int> kept);

/// Of a thread with files of its own, no other thread may touch it.
class PrivateSocket {
 public:
  PrivateSocket() = default;
  ~PrivateSocket() { close(); }
  PrivateSocket(PrivateSocket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  PrivateSocket& operator=(PrivateSocket&& other) noexcept;

  /// A socket of this address family for streams, which does not block. Invalid if it fails; errno
  /// says why.
  static PrivateSocket open(int family);
  /// The next connection that has arrived, which does not block either. Invalid: there is none, or
  /// it cannot be had; errno says which.
  PrivateSocket accept() const;

  void close();
  bool is_valid() const { return fd_ >= 0; }
  operator int() const { return fd_; }

 private:
  explicit PrivateSocket(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace q7x2
