// Letters in shared memory: whatever another process writes there, what is read lies in its arena.
#include <cstring>
#include <memory>

#include "format.h"
#include "transport/letter.h"

namespace q7x2::fuzz {
namespace {

constexpr size_t kArena = 4096;

std::string example(Random& random) {
  const auto letter = std::make_unique<Letter>();
  static std::array<std::byte, kArena> arena;
  HostMessage message;
  message.tag = random();
  message.kind =
      static_cast<LetterKind>(random() % (static_cast<unsigned>(LetterKind::kPiece) + 1));
  if (random() % 2 == 0) {
    const size_t offset = random() % kArena;
    message.ticket = static_cast<uint16_t>(random() % HostMessage::kTickets);
    message.staged = arena.data() + offset;
    message.length = static_cast<uint32_t>(random() % (kArena - offset + 1));
  } else {
    message.length = static_cast<uint32_t>(random() % (HostMessage::kInlineBytes + 1));
  }
  letter->write(message, arena.data());
  return {reinterpret_cast<const char*>(letter.get()), sizeof(Letter)};
}

bool read(std::string_view input, Random&) {
  // Memory of exactly this length, so that a sanitizer sees what is read beside it.
  static const std::unique_ptr<std::byte[]> arena(new std::byte[kArena]());
  const auto letter = std::make_unique<Letter>();
  input.copy(reinterpret_cast<char*>(letter.get()), sizeof(Letter));
  const HostMessage message = letter->read(arena.get(), kArena);
  if (message.ticket == HostMessage::kNoTicket) {
    require(message.length <= HostMessage::kInlineBytes, "a letter carries too much");
  } else {
    require(message.ticket < HostMessage::kTickets, "a ticket that there is not");
  }
  require(message.kind <= LetterKind::kPiece, "a kind that there is not");
  unsigned sum = 0;
  for (size_t i = 0; i < message.length; ++i) sum += std::to_integer<unsigned>(message.data()[i]);
  return sum + 1 > 0;
}

}  // namespace

std::vector<Format> letter_formats() {
  return {{"letter", 18, example, read}};
}

}  // namespace q7x2::fuzz
