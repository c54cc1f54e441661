// Cards and handles.
#include "format.h"
#include "transport/card.h"
#include "transport/handle.h"

namespace q7x2::fuzz {
namespace {

std::string text(Random& random, size_t longest) {
  std::string bytes(random() % (longest + 1), '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

Card example(Random& random) {
  Card card;
  card.process = random();
  card.pid = 1 + static_cast<int32_t>(random() % 100'000);
  card.slot = static_cast<uint16_t>(random() % 1024);
  card.world_size = static_cast<uint16_t>(random());
  card.host_key = text(random, 30);
  card.hostname = "node-" + std::to_string(random() % 100);
  card.address = text(random, 200);
  card.heartbeat_port = static_cast<uint16_t>(random());
  for (uint64_t i = random() % 3; i > 0; --i) {
    card.beside.push_back({"eth" + std::to_string(i), static_cast<uint32_t>(random()),
                           static_cast<uint8_t>(random() % 33)});
  }
  card.transports = "posix, tcp";
  card.memory = text(random, 40);
  for (uint64_t i = random() % 3; i > 0; --i) {
    card.renewed.push_back({random(), static_cast<uint32_t>(random()),
                            static_cast<uint32_t>(random()), static_cast<uint32_t>(random())});
  }
  return card;
}

bool read_card(std::string_view input, Random&) {
  const Card card = Card::decode(input);
  require(card.pid > 0, "a card has no PID");
  require(Card::decode(card.encode()).encode() == card.encode(), "a card is written otherwise");
  for (const Nic& nic : card.beside) require(nic.prefix <= 32, "a network has too many bits");
  return true;
}

const JobSecret kSecret("a secret");

bool read_handle(std::string_view input, Random&) {
  const Handle handle = Handle::decode(input, kSecret);
  require(handle.rank >= -1, "a handle has an impossible rank");
  require(handle.encode(kSecret) == input, "a handle can be written in two ways");
  return true;
}

// What is behind the seal.
bool read_sealed_handle(std::string_view input, Random& random) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "q7x2-handle:2:";
  for (const char c : kSecret.seal("handle", input)) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  const Handle handle = Handle::decode(text, kSecret);
  require(handle.rank >= -1, "a handle has an impossible rank");
  return read_card(handle.card.encode(), random);
}

}  // namespace

std::vector<Format> card_formats() {
  const auto handle = [](Random& random) {
    return Handle{example(random), static_cast<int>(random() % 9) - 1};
  };
  const auto fields = [=](Random& random) {
    const Handle it = handle(random);
    return encode_list({std::to_string(it.rank), it.card.encode()});
  };
  return {
      {"card", 15, [](Random& random) { return example(random).encode(); }, read_card},
      {"handle", 4, [=](Random& random) { return handle(random).encode(kSecret); }, read_handle},
      {"sealed handle", 4, fields, read_sealed_handle},
  };
}

}  // namespace q7x2::fuzz
