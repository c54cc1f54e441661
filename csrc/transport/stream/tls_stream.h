// TlsStream: a connection that is encrypted and authenticated with TLS 1.3 (RFC 8446), by OpenSSL.
//
// Both ends have a pre-shared key, so there are no certificates: who does not know the key cannot
// complete the handshake, and the listener spends no public-key operation on him. A Diffie-Hellman
// exchange is part of each handshake, so whoever learns the key later cannot read what was recorded
// before. The handshake takes one round trip. It begins with the first write or read.
//
// What `write` accepts is encrypted at once. If the kernel does not take all of it, the rest waits
// here, and `flush` goes on.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <vector>

#include "transport/stream/byte_stream.h"
#include "transport/stream/tls_context.h"
#include "transport/trust/job_secret.h"

namespace q7x2 {

/// The key of TLS connections to the process with this message key.
MessageKey tls_key(const MessageKey& key_to_listener);

enum class StreamEnd { kCaller, kListener };

class TlsStream final : public ByteStream {
 public:
  /// `key`: see `tls_key`. Throws std::bad_alloc.
  TlsStream(PrivateSocket socket, const TlsContext& context, StreamEnd end, const MessageKey& key);

  int fd() const override { return socket_; }
  std::optional<size_t> read(std::span<const iovec> into) override;
  std::optional<size_t> write(std::span<const iovec> from) override;
  bool flush() override;
  bool has_unsent() const override { return begin_ < unsent_.size(); }
  bool has_unread() const override;
  bool is_shaking_hands() const override;

 private:
  struct Free {
    void operator()(SSL* ssl) const;
  };

  /// False: the connection is over.
  bool collect();
  bool goes_on(int result);

  PrivateSocket socket_;
  const MessageKey key_;
  std::unique_ptr<SSL, Free> ssl_;
  BIO* encrypted_ = nullptr;  // what `ssl_` has written; owned by it
  std::vector<std::byte>
      unsent_;  // encrypted bytes that the kernel has not taken, from `begin_` on
  size_t begin_ = 0;
};

/// A TlsStream, or a PlainStream if the options say so. `key`: the message key of the listener.
std::unique_ptr<ByteStream> make_stream(PrivateSocket socket, const StreamOptions& options,
                                        StreamEnd end, const MessageKey& key);

}  // namespace q7x2
