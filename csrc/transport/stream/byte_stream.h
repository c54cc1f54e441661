// ByteStream: how a connection reads and writes its bytes. PlainStream does so with a TCP socket,
// TlsStream (tls_stream.h) encrypts them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "transport/net/private_socket.h"
#include "transport/stream/stream_options.h"

namespace q7x2 {

class ByteStream {
 public:
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  /// What epoll watches.
  virtual int fd() const = 0;
  /// How many bytes were moved; 0: none can be now. Nothing: the connection is over.
  virtual std::optional<size_t> read(std::span<const iovec> into) = 0;
  virtual std::optional<size_t> write(std::span<const iovec> from) = 0;
  /// Hands what `write` has taken to the kernel, as far as that takes it. False: the connection is
  /// over.
  virtual bool flush() { return true; }
  /// Some of it is left.
  virtual bool has_unsent() const { return false; }
  /// `read` would return something even if the kernel has nothing.
  virtual bool has_unread() const { return false; }
  /// `write` takes nothing until something has been read.
  virtual bool is_shaking_hands() const { return false; }
};

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(PrivateSocket socket) : socket_(std::move(socket)) {}

  int fd() const override { return socket_; }
  std::optional<size_t> read(std::span<const iovec> into) override;
  std::optional<size_t> write(std::span<const iovec> from) override;

 private:
  PrivateSocket socket_;
};

/// What the kernel says of a connection.
struct TcpState {
  size_t segment = 1;      ///< bytes of a full packet
  size_t window = 0;       ///< bytes of the congestion window
  size_t room = 0;         ///< bytes that it would let leave at once
  size_t unsent = 0;       ///< bytes that wait in the kernel for that window
  size_t in_flight = 0;    ///< bytes without acknowledgement
  bool is_healthy = true;  ///< nothing seems to be lost
  StreamDuration rtt{};
  StreamDuration since_heard{};  ///< since the other kernel's last packet

  /// A socket that is not TCP acts as if its window were always open.
  static TcpState of(int socket);
};

/// Options of a connection that was just made. `congestion`: empty for what the kernel chooses.
void prepare_tcp(int socket, const std::string& congestion);

}  // namespace q7x2
