// Envelopes: the header of every control message, which proves that the message belongs to the job.
//
//   sender    8 bytes: the process's number
//   number    8 bytes: counts the messages of this kind from the sender to the receiver, from 1
//   proof    16 bytes: authenticates the kind, both processes, the number and the message
//   message
//
// The proof is checked before anything in the message is read. Then the number is checked: a
// recorded message that is sent again is dropped. The key is the receiver's
// (transport/trust/job_secret.h), so a message can be checked even before its sender's peer info
// has arrived.
//
// A message that fails is dropped and counted. The first one causes a warning.
//
// Guarded by the reactor's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "transport/trust/job_secret.h"
#include "transport/trust/replay_window.h"

namespace q7x2 {

class Envelopes {
 public:
  /// Each kind has its own numbers, because messages of one kind keep their order.
  enum class Kind : uint8_t { kControl, kBootstrap, kPrivate };
  static constexpr size_t kBytes = 32;

  struct Opened {
    uint64_t sender = 0;  ///< process number
    std::string_view message;
  };

  /// `self`: this process.
  Envelopes(const JobSecret& secret, const Identity& self);

  /// `message` with its envelope. The result must be sent exactly once.
  std::string close(Kind kind, const Identity& receiver, std::string_view message);
  /// Returns nothing if the message must be dropped. The result points into `bytes`. Throws
  /// std::bad_alloc.
  std::optional<Opened> open(Kind kind, std::string_view bytes);

  /// How many messages were dropped.
  uint64_t refused() const { return refused_; }

 private:
  static constexpr size_t kKinds = 3;
  struct Partner {
    MessageKey key{};
    bool has_key = false;
    std::array<uint64_t, kKinds> sent{};
    std::array<ReplayWindow, kKinds> heard;
  };

  void refuse();

  const JobSecret secret_;
  const uint64_t process_;
  const MessageKey own_key_;
  std::unordered_map<uint64_t, Partner> partners_;  // by process
  uint64_t refused_ = 0;
};

}  // namespace q7x2
