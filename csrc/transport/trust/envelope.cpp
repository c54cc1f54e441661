#include "transport/trust/envelope.h"

#include <bit>
#include <cstring>

#include "base/crypto.h"
#include "base/log.h"

namespace q7x2 {
namespace {

struct Wire {
  uint64_t sender;
  uint64_t number;
  Proof proof;
};
static_assert(sizeof(Wire) == Envelopes::kBytes);

Proof proof_of(const MessageKey& key, Envelopes::Kind kind, uint64_t sender, uint64_t receiver,
               uint64_t number, std::string_view message) {
  const std::array<uint64_t, 3> numbers{sender, receiver, number};
  return prove(key, kind == Envelopes::Kind::kControl ? "control" : "bootstrap",
               std::as_bytes(std::span(numbers)), std::as_bytes(std::span(message)));
}

}  // namespace

Envelopes::Envelopes(const JobSecret& secret, const Identity& self)
    : secret_(secret), process_(self.process), own_key_(secret.key_to(self)) {}

std::string Envelopes::close(Kind kind, const Identity& receiver, std::string_view message) {
  Partner& partner = partners_[receiver.process];
  if (!partner.has_key) {
    partner.key = secret_.key_to(receiver);
    partner.has_key = true;
  }
  const uint64_t number = ++partner.sent[static_cast<size_t>(kind)];
  const Wire wire{process_, number,
                  proof_of(partner.key, kind, process_, receiver.process, number, message)};
  std::string bytes(sizeof(wire) + message.size(), '\0');
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  message.copy(bytes.data() + sizeof(wire), message.size());
  return bytes;
}

std::optional<Envelopes::Opened> Envelopes::open(Kind kind, std::string_view bytes) {
  Wire wire;
  if (bytes.size() < sizeof(wire)) {
    refuse();
    return std::nullopt;
  }
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  const std::string_view message = bytes.substr(sizeof(wire));
  const bool is_proven = equal_in_constant_time(
      wire.proof, proof_of(own_key_, kind, wire.sender, process_, wire.number, message));
  // An entry is made only for senders that know the key, so strangers cannot fill the memory.
  if (!is_proven || !partners_[wire.sender].heard[static_cast<size_t>(kind)].accept(wire.number)) {
    refuse();
    return std::nullopt;
  }
  return Opened{wire.sender, message};
}

void Envelopes::refuse() {
  ++refused_;
  if (refused_ == 1) {
    log(Level::kWarn,
        "dropped a message that no process of this job has sent: it has another Q7X2_SECRET, was "
        "damaged, or was sent again. Further ones are only counted (Q7X2_LOG=info)");
  } else if (std::has_single_bit(refused_)) {
    log(Level::kInfo, std::to_string(refused_) + " messages that no process of this job has sent");
  }
}

}  // namespace q7x2
