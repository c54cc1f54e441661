#include "transport/trust/job_secret.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>

#include "base/crypto.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/hex.h"

namespace q7x2 {
namespace {

// Shorter than the output of `openssl rand -hex 16`. A random text of this length cannot be
// guessed.
constexpr size_t kFewestCharacters = 16;
constexpr std::string_view kSalt = "q7x2 secret";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}
/// The bytes of a number, in this machine's byte order: all machines of a job have the same.
std::span<const std::byte> bytes_of(const uint64_t& number) {
  return std::as_bytes(std::span(&number, 1));
}

Proof shortened(const std::array<std::byte, 32>& code) {
  Proof proof;
  std::memcpy(proof.data(), code.data(), proof.size());
  return proof;
}

/// Computed once per text: a process has one secret, and needs its key often.
std::array<std::byte, 32> key_of(std::string_view text) {
  static std::mutex mutex;
  static auto& keys = *new std::map<std::string, std::array<std::byte, 32>, std::less<>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = keys.find(text);
  if (found == keys.end()) found = keys.emplace(text, stretched(text, kSalt)).first;
  return found->second;
}

/// The first line of the file.
std::string secret_in(const std::string& file) {
  std::ifstream in(file);
  std::string text;
  if (!std::getline(in, text)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "Q7X2_SECRET_FILE=" + file + ": " + (in.is_open() ? "it is empty" : std::strerror(errno)));
  }
  while (!text.empty() && (text.back() == '\r' || text.back() == ' ')) text.pop_back();
  return text;
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

JobSecret::JobSecret(std::string_view text) : key_{}, is_set_(!text.empty()) {
  if (is_set_) key_ = key_of(text);
}

JobSecret JobSecret::of_environment() {
  const std::string file = environment("Q7X2_SECRET_FILE");
  std::string text = environment("Q7X2_SECRET");
  if (!file.empty() && !text.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "Q7X2_SECRET and Q7X2_SECRET_FILE are both set: expected one of them");
  }
  if (!file.empty()) text = secret_in(file);
  if ((!text.empty() || !file.empty()) && text.size() < kFewestCharacters) {
    throw Error(
        ErrorCode::kInvalidArgument,
        (file.empty() ? "Q7X2_SECRET has " : "the secret in Q7X2_SECRET_FILE=" + file + " has ") +
            std::to_string(text.size()) + " characters, expected at least " +
            std::to_string(kFewestCharacters) +
            ": a short one can be guessed. This makes a good one: openssl rand -hex 32");
  }
  return JobSecret(text);
}

Proof JobSecret::seal_of(std::string_view place, std::string_view text) const {
  const uint64_t length = place.size();
  return shortened(
      hmac(key_, {bytes_of("seal"), bytes_of(length), bytes_of(place), bytes_of(text)}));
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
  return hmac(key_, {bytes_of("key"), bytes_of(process.process), process.key});
}

Proof prove(const MessageKey& key, std::string_view kind, std::span<const std::byte> numbers,
            std::span<const std::byte> message) {
  const uint64_t length = kind.size();
  return shortened(hmac(key, {bytes_of(length), bytes_of(kind), numbers, message}));
}

}  // namespace q7x2
