// JobSecret: how a process proves that it belongs to the job.
//
// Each process draws a random *key* when it starts, and publishes it with its peer info: through
// the store, or in its handle. Who talks to a process must know that key. So whoever can read the
// store of a job, or holds a handle, belongs to the job, and nobody else does.
//
// Q7X2_SECRET, if it is set, is a second condition: a text that all processes of the job are given
// by another way than the store. It is a part of every proof. Then reading the store is not enough.
//
//   secret    scrypt(Q7X2_SECRET), so that it takes long to try many; 32 zeros without one
//   seal      of a text that passes through the store or in a handle:
//             HMAC(secret; "seal", where the text belongs, text)
//   key to P  HMAC(secret; "key", P's number, P's key)
//   proof     of a message to P: HMAC(key to P; what kind of message it is, its bytes)
//
// HMAC is HMAC-SHA256. Of seals and proofs 128 bits are sent. All three are told apart by how they
// begin. Without Q7X2_SECRET a seal only shows that the text is whole. docs/trust.md says
// what follows from that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace q7x2 {

/// What a process draws at random, and publishes to those that may talk to it.
using ProcessKey = std::array<std::byte, 16>;
/// With what messages to one process are authenticated.
using MessageKey = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 16>;

/// A process as others must know it to talk to it.
struct Identity {
  uint64_t process = 0;
  ProcessKey key{};
};

/// Random, from the kernel. Throws Error(kTransport) if it has none.
Identity random_identity();
void fill_randomly(std::span<std::byte> bytes);
/// 32 hexadecimal digits that nobody else has. Throws Error(kTransport).
std::string random_key();

class JobSecret {
 public:
  static constexpr size_t kSealBytes = 16;

  /// Empty: there is none.
  explicit JobSecret(std::string_view text);
  /// Of Q7X2_SECRET. Throws Error(kInvalidArgument) if that is too short.
  static JobSecret of_environment();

  /// `text` behind its seal. `place` says where it belongs, so that it cannot be used elsewhere.
  std::string seal(std::string_view place, std::string_view text) const;
  /// The text that was sealed, a part of `sealed`. Throws Error(kMismatch) if the bytes were
  /// changed, or sealed for another place or with another secret. `whose` begins the message: "the
  /// peer info of rank 3".
  std::string_view open(std::string_view place, std::string_view sealed,
                        const std::string& whose) const;

  MessageKey key_to(const Identity& process) const;

 private:
  Proof seal_of(std::string_view place, std::string_view text) const;

  std::array<std::byte, 32> key_;
  bool is_set_;
};

/// `kind` tells messages apart that have the same bytes. The length of `numbers` must follow from
/// it.
Proof prove(const MessageKey& key, std::string_view kind, std::span<const std::byte> numbers,
            std::span<const std::byte> message = {});

}  // namespace q7x2
