#include "base/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <memory>
#include <new>
#include <string>

namespace q7x2 {
namespace {

using MacContext = std::unique_ptr<EVP_MAC_CTX, void (*)(EVP_MAC_CTX*)>;

void require(bool succeeded) {
  if (!succeeded) throw std::bad_alloc();
}

const unsigned char* bytes_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

MacContext new_context() {
  const std::unique_ptr<EVP_MAC, void (*)(EVP_MAC*)> kind(EVP_MAC_fetch(nullptr, "HMAC", nullptr),
                                                          EVP_MAC_free);
  require(kind != nullptr);
  MacContext context(EVP_MAC_CTX_new(kind.get()), EVP_MAC_CTX_free);
  require(context != nullptr);
  std::string digest = "SHA256";
  const std::array<OSSL_PARAM, 2> params{
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_end()};
  require(EVP_MAC_CTX_set_params(context.get(), params.data()) == 1);
  return context;
}

}  // namespace

std::array<std::byte, 32> hmac(std::span<const std::byte> key,
                               std::initializer_list<std::span<const std::byte>> parts) {
  // Making a context takes longer than most messages.
  thread_local const MacContext context = new_context();
  require(EVP_MAC_init(context.get(), bytes_of(key), key.size(), nullptr) == 1);
  for (const std::span<const std::byte> part : parts) {
    require(EVP_MAC_update(context.get(), bytes_of(part), part.size()) == 1);
  }
  std::array<std::byte, 32> code;
  size_t length = 0;
  require(EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(code.data()), &length,
                        code.size()) == 1 &&
          length == code.size());
  return code;
}

std::array<std::byte, 32> stretched(std::string_view password, std::string_view salt) {
  constexpr uint64_t kCost = 1 << 14;
  constexpr uint64_t kBlockSize = 8;
  constexpr uint64_t kParallel = 1;
  constexpr uint64_t kMostMemory = 64 << 20;
  std::array<std::byte, 32> key;
  require(EVP_PBE_scrypt(password.data(), password.size(),
                         reinterpret_cast<const unsigned char*>(salt.data()), salt.size(), kCost,
                         kBlockSize, kParallel, kMostMemory,
                         reinterpret_cast<unsigned char*>(key.data()), key.size()) == 1);
  return key;
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace q7x2
