// Letters in shared memory: whatever another process writes there, what is read lies in its arena.
#include <cstring>
#include <memory>

#include "format.h"
#include "transport/shm/shm_descriptor.h"

namespace q7x2::fuzz {
namespace {

constexpr size_t kArena = 4096;

std::string example(Random& random) {
  const auto descriptor = std::make_unique<ShmDescriptor>();
  static std::array<std::byte, kArena> arena;
  HostMessage message;
  message.tag = random();
  message.kind =
      static_cast<DescriptorKind>(random() % (static_cast<unsigned>(DescriptorKind::kPiece) + 1));
  if (random() % 2 == 0) {
    const size_t offset = random() % kArena;
    message.ticket = static_cast<uint16_t>(random() % HostMessage::kTickets);
    message.staged = arena.data() + offset;
    message.length = static_cast<uint32_t>(random() % (kArena - offset + 1));
  } else {
    message.length = static_cast<uint32_t>(random() % (HostMessage::kInlineBytes + 1));
  }
  descriptor->write(message, arena.data());
  return {reinterpret_cast<const char*>(descriptor.get()), sizeof(ShmDescriptor)};
}

bool read(std::string_view input, Random&) {
  // Memory of exactly this length, so that a sanitizer sees what is read beside it.
  static const std::unique_ptr<std::byte[]> arena(new std::byte[kArena]());
  const auto descriptor = std::make_unique<ShmDescriptor>();
  input.copy(reinterpret_cast<char*>(descriptor.get()), sizeof(ShmDescriptor));
  const HostMessage message = descriptor->read(arena.get(), kArena);
  if (message.ticket == HostMessage::kNoTicket) {
    require(message.length <= HostMessage::kInlineBytes, "a descriptor carries too much");
  } else {
    require(message.ticket < HostMessage::kTickets, "a ticket that there is not");
  }
  require(message.kind <= DescriptorKind::kPiece, "a kind that there is not");
  unsigned sum = 0;
  for (size_t i = 0; i < message.length; ++i) sum += std::to_integer<unsigned>(message.data()[i]);
  return sum + 1 > 0;
}

}  // namespace

std::vector<Format> letter_formats() {
  return {{"descriptor", 18, example, read}};
}

}  // namespace q7x2::fuzz
