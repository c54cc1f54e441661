#include "transport/stream/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>

#include "base/crypto.h"

namespace q7x2 {
namespace {

// The longest record of TLS.
constexpr size_t kRecord = SSL3_RT_MAX_PLAIN_LENGTH;
// So many encrypted bytes are handed to the kernel at once.
constexpr size_t kAtOnce = size_t{64} << 10;

template <typename T>
T* allocated(T* object) {
  if (object == nullptr) throw std::bad_alloc();
  return object;
}

/// Copies the next bytes of `from` into `record`. Moves `part` and `done` on.
size_t gather(std::span<const iovec> from, size_t& part, size_t& done,
              std::span<std::byte> record) {
  size_t size = 0;
  while (part < from.size() && size < record.size()) {
    const size_t count = std::min(record.size() - size, from[part].iov_len - done);
    std::memcpy(record.data() + size, static_cast<const std::byte*>(from[part].iov_base) + done,
                count);
    size += count;
    done += count;
    if (done == from[part].iov_len) {
      ++part;
      done = 0;
    }
  }
  return size;
}

}  // namespace

MessageKey tls_key(const MessageKey& key_to_listener) {
  constexpr std::string_view kUse = "q7x2 tls 1.3 psk";
  return hmac(key_to_listener, {std::as_bytes(std::span(kUse))});
}

void TlsStream::Free::operator()(SSL* ssl) const {
  SSL_free(ssl);
}

TlsStream::TlsStream(PrivateSocket socket, const TlsContext& context, StreamEnd end,
                     const MessageKey& key)
    : socket_(std::move(socket)), key_(key), ssl_(allocated(SSL_new(context.get()))) {
  SSL_set_app_data(ssl_.get(), const_cast<MessageKey*>(&key_));
  SSL_set0_rbio(ssl_.get(), allocated(BIO_new_socket(socket_, BIO_NOCLOSE)));
  encrypted_ = allocated(BIO_new(BIO_s_mem()));
  SSL_set0_wbio(ssl_.get(), encrypted_);
  if (end == StreamEnd::kCaller) {
    SSL_set_connect_state(ssl_.get());
  } else {
    SSL_set_accept_state(ssl_.get());
  }
}

bool TlsStream::has_unread() const {
  return SSL_has_pending(ssl_.get()) != 0;
}

bool TlsStream::is_shaking_hands() const {
  return SSL_is_init_finished(ssl_.get()) == 0;
}

/// Takes what OpenSSL has written, and hands it to the kernel.
bool TlsStream::collect() {
  char* data = nullptr;
  const long size = BIO_get_mem_data(encrypted_, &data);
  if (size > 0) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(data);
    unsent_.insert(unsent_.end(), bytes, bytes + size);
    BIO_reset(encrypted_);
  }
  return flush();
}

bool TlsStream::flush() {
  while (begin_ < unsent_.size()) {
    const ssize_t count = ::send(socket_, unsent_.data() + begin_, unsent_.size() - begin_,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR || errno == ENOBUFS;
    begin_ += static_cast<size_t>(count);
  }
  unsent_.clear();
  begin_ = 0;
  return true;
}

/// Whether the connection is not over, after a call of OpenSSL that returned `result`.
bool TlsStream::goes_on(int result) {
  const int error = SSL_get_error(ssl_.get(), result);
  ERR_clear_error();
  return collect() && (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE);
}

std::optional<size_t> TlsStream::read(std::span<const iovec> into) {
  size_t total = 0;
  for (const iovec& part : into) {
    for (size_t done = 0; done < part.iov_len;) {
      size_t count = 0;
      const int result = SSL_read_ex(ssl_.get(), static_cast<std::byte*>(part.iov_base) + done,
                                     part.iov_len - done, &count);
      if (result == 1) {
        done += count;
        total += count;
        continue;
      }
      // What has come is handed on first; the end of the connection shows at the next call.
      if (!goes_on(result) && total == 0) return std::nullopt;
      return total;
    }
  }
  return total;
}

std::optional<size_t> TlsStream::write(std::span<const iovec> from) {
  if (!flush()) return std::nullopt;
  std::array<std::byte, kRecord> record;
  size_t part = 0;
  size_t part_done = 0;
  size_t total = 0;
  while (begin_ == unsent_.size()) {
    const size_t size = gather(from, part, part_done, record);
    if (size == 0) break;
    size_t count = 0;
    const int result = SSL_write_ex(ssl_.get(), record.data(), size, &count);
    if (result != 1) return goes_on(result) ? std::optional(total) : std::nullopt;
    total += size;
    if (BIO_ctrl_pending(encrypted_) >= kAtOnce && !collect()) return std::nullopt;
  }
  return collect() ? std::optional(total) : std::nullopt;
}

std::unique_ptr<ByteStream> make_stream(PrivateSocket socket, const StreamOptions& options,
                                        StreamEnd end, const MessageKey& key) {
  if (!options.tls) return std::make_unique<PlainStream>(std::move(socket));
  return std::make_unique<TlsStream>(std::move(socket), *options.tls, end, tls_key(key));
}

}  // namespace q7x2
