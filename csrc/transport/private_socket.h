// PrivateSocket: a socket that forked children do not keep.
//
// The kernel tells the other end that a connection is over when the last copy of the socket is
// closed. A data loader's workers are forked copies, and they may outlive the process by seconds.
// So a child closes its copies as soon as it is forked.
#pragma once

namespace q7x2 {

class PrivateSocket {
 public:
  PrivateSocket() = default;
  ~PrivateSocket() { close(); }
  PrivateSocket(PrivateSocket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  PrivateSocket& operator=(PrivateSocket&& other) noexcept;

  /// A TCP socket over IPv4 that does not block. Invalid if there is none; errno says why.
  static PrivateSocket open();
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
