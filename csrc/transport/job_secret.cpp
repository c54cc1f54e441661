#include "transport/job_secret.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/blake2s.h"
#include "base/error.h"
#include "base/hex.h"

namespace q7x2 {
namespace {

void add_framed(Blake2s& hash, std::string_view text) {
  hash.add(uint64_t{text.size()});
  hash.add(text);
}

}  // namespace

void fill_randomly(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw Error(ErrorCode::kTransport, std::string("getrandom: ") + std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

std::string random_key() {
  std::string bytes(16, '\0');
  fill_randomly(std::as_writable_bytes(std::span(bytes)));
  return to_hex(bytes);
}

Identity random_identity() {
  Identity identity;
  fill_randomly(std::as_writable_bytes(std::span(&identity.process, 1)));
  fill_randomly(identity.key);
  return identity;
}

JobSecret::JobSecret(std::string_view text) : is_set_(!text.empty()) {
  Blake2s hash;
  hash.add("q7x2 secret");
  hash.add(text);
  hash.finish(key_);
}

JobSecret JobSecret::of_environment() {
  const char* const text = std::getenv("Q7X2_SECRET");
  return JobSecret(text == nullptr ? "" : text);
}

Proof JobSecret::seal_of(std::string_view place, std::string_view text) const {
  Blake2s hash(sizeof(Proof), key_);
  add_framed(hash, "seal");
  add_framed(hash, place);
  hash.add(text);
  Proof seal;
  hash.finish(seal);
  return seal;
}

std::string JobSecret::seal(std::string_view place, std::string_view text) const {
  const Proof seal = seal_of(place, text);
  std::string sealed(reinterpret_cast<const char*>(seal.data()), seal.size());
  return sealed.append(text);
}

std::string_view JobSecret::open(std::string_view place, std::string_view sealed,
                                 const std::string& whose) const {
  if (sealed.size() >= kSealBytes) {
    const auto seal = std::as_bytes(std::span(sealed.data(), kSealBytes));
    const std::string_view text = sealed.substr(kSealBytes);
    if (equal_in_constant_time(seal, seal_of(place, text))) {
      return text;
    }
  }
  throw Error(ErrorCode::kMismatch,
              whose + " does not have the seal of this job: Q7X2_SECRET, which is " +
                  (is_set_ ? "set here, must be the same" : "not set here, must be unset") +
                  " there, and so must be the version of q7x2");
}

MessageKey JobSecret::key_to(const Identity& process) const {
  Blake2s hash(sizeof(MessageKey), key_);
  add_framed(hash, "key");
  hash.add(process.process);
  hash.add(process.key);
  MessageKey key;
  hash.finish(key);
  return key;
}

Proof prove(const MessageKey& key, std::string_view kind,
            std::initializer_list<std::span<const std::byte>> parts) {
  Blake2s hash(sizeof(Proof), key);
  add_framed(hash, kind);
  for (const std::span<const std::byte> part : parts) {
    hash.add(part);
  }
  Proof proof;
  hash.finish(proof);
  return proof;
}

}  // namespace q7x2
