// TlsContext: what the encrypted connections of a process have in common: version, cipher, and how
// OpenSSL gets their keys.
#pragma once

#include <openssl/types.h>

#include <memory>

namespace q7x2 {

/// Any thread.
class TlsContext {
 public:
  /// Throws std::bad_alloc.
  TlsContext();
  SSL_CTX* get() const { return context_.get(); }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const;
  };
  std::unique_ptr<SSL_CTX, Free> context_;
};

}  // namespace q7x2
