#include "transport/stream/tls_context.h"

#include <openssl/ssl.h>

#include <array>
#include <cstddef>
#include <new>
#include <string_view>

#include "transport/trust/job_secret.h"

namespace q7x2 {
namespace {

// What OpenSSL reads at once from a socket.
constexpr size_t kReadAhead = size_t{64} << 10;
constexpr std::string_view kName = "q7x2";
constexpr std::array<unsigned char, 2> kCipher{0x13, 0x01};  // TLS_AES_128_GCM_SHA256

/// A session that stands for the key. The caller owns it; null: there is no memory.
SSL_SESSION* session_of(SSL* ssl) {
  const auto* const key = static_cast<const MessageKey*>(SSL_get_app_data(ssl));
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kCipher.data());
  const bool is_set =
      cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key->data()),
                                  key->size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  if (is_set) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int use_session(SSL* ssl, const EVP_MD*, const unsigned char** name, size_t* length,
                SSL_SESSION** session) {
  *name = reinterpret_cast<const unsigned char*>(kName.data());
  *length = kName.size();
  *session = session_of(ssl);
  return *session == nullptr ? 0 : 1;
}

int find_session(SSL* ssl, const unsigned char* name, size_t length, SSL_SESSION** session) {
  const std::string_view asked(reinterpret_cast<const char*>(name), length);
  *session = asked == kName ? session_of(ssl) : nullptr;
  return asked == kName && *session == nullptr ? 0 : 1;
}

}  // namespace

void TlsContext::Free::operator()(SSL_CTX* context) const {
  SSL_CTX_free(context);
}

TlsContext::TlsContext() : context_(SSL_CTX_new(TLS_method())) {
  if (!context_) throw std::bad_alloc();
  SSL_CTX* const context = context_.get();
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAhead);
  SSL_CTX_set_psk_use_session_callback(context, use_session);
  SSL_CTX_set_psk_find_session_callback(context, find_session);
}

}  // namespace q7x2
