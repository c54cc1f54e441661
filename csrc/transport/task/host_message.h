// HostMessage: a message in memory that two ranks of a host share, as its sender or its receiver
// sees it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace q7x2 {

/// What a descriptor stands for. All kinds but the first belong to messages of the user: see
/// Outbox.
enum class DescriptorKind : uint16_t {
  kCollective,  ///< a message of a collective
  kWhole,       ///< a whole message
  kOffer,       ///< an offer of a message that needs several descriptors
  kAcceptance,
  kRefusal,
  kWithdrawal,
  kPiece,
};

struct HostMessage {
  static constexpr size_t kInlineBytes = 40;
  static constexpr int kTickets = 256;
  static constexpr int kNoTicket = 0xffff;

  uint64_t tag = 0;
  uint32_t length = 0;
  uint16_t ticket = kNoTicket;
  DescriptorKind kind = DescriptorKind::kCollective;
  /// In the sender's arena; null if the bytes are in `carried`.
  const std::byte* staged = nullptr;
  std::array<std::byte, kInlineBytes> carried{};

  const std::byte* data() const { return staged != nullptr ? staged : carried.data(); }
};

}  // namespace q7x2
