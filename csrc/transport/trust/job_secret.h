// JobSecret: how a process proves that it belongs to the job.
//
// Each process draws a random *key* when it starts, and publishes it with its peer info, in the
// store or in its handle. A process that sends messages to it must know that key. So exactly those
// who can read the job's store, or hold a handle, belong to the job.
//
// Q7X2_SECRET adds a second condition: a text that all processes of the job get in another way than
// from the store. It is a part of every proof. Then reading the store is not enough.
//
//   secret    scrypt(Q7X2_SECRET), which makes guessing slow; 32 zero bytes if it is unset
//   seal      authenticates a text in the store or in a handle:
//             HMAC(secret; "seal", where the text belongs, text)
//   key to P  HMAC(secret; "key", P's number, P's key)
//   proof     authenticates a message to P: HMAC(key to P; kind of message, its bytes)
//
// HMAC is HMAC-SHA256. Seals and proofs are cut to 128 bits. The three uses differ in their first
// bytes. Without Q7X2_SECRET a seal only protects the text from accidental changes. docs/trust.md
// describes the consequences.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace q7x2 {

/// Drawn at random by a process, and published to those that may send messages to it.
using ProcessKey = std::array<std::byte, 16>;
/// The key that authenticates messages to one process.
using MessageKey = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 16>;

/// What others must know about a process to send messages to it.
struct Identity {
  uint64_t process = 0;
  ProcessKey key{};
};

/// Random, from the kernel. Throws Error(kTransport) if it has none.
Identity random_identity();
void fill_randomly(std::span<std::byte> bytes);
/// 32 random hexadecimal digits. Throws Error(kTransport).
std::string random_key();

class JobSecret {
 public:
  static constexpr size_t kSealBytes = 16;

  /// Empty: no secret.
  explicit JobSecret(std::string_view text);
  /// Reads Q7X2_SECRET, or the file that Q7X2_SECRET_FILE names. Throws Error(kInvalidArgument) if
  /// both are set, the file cannot be read, or the secret is too short.
  static JobSecret of_environment();

  bool is_set() const { return is_set_; }

  /// `text` with its seal. `place` says where it belongs, so that it is not valid elsewhere.
  std::string seal(std::string_view place, std::string_view text) const;
  /// The text that was sealed, a part of `sealed`. Throws Error(kMismatch) if the bytes were
  /// changed, or were sealed for another place or with another secret. `whose` begins the error
  /// message: "the peer info of rank 3".
  std::string_view open(std::string_view place, std::string_view sealed,
                        const std::string& whose) const;

  MessageKey key_to(const Identity& process) const;

 private:
  Proof seal_of(std::string_view place, std::string_view text) const;

  std::array<std::byte, 32> key_;
  bool is_set_;
};

/// `kind` distinguishes messages with the same bytes. The length of `numbers` must follow from it.
Proof prove(const MessageKey& key, std::string_view kind, std::span<const std::byte> numbers,
            std::span<const std::byte> message = {});

}  // namespace q7x2
