// What processes publish of themselves, and handles.
#include "format.h"
#include "transport/bootstrap/peer_address.h"
#include "transport/peer/peer_info.h"

namespace q7x2::fuzz {
namespace {

std::string text(Random& random, size_t longest) {
  std::string bytes(random() % (longest + 1), '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

PeerInfo example(Random& random) {
  PeerInfo peer_info;
  peer_info.process = random();
  peer_info.pid = 1 + static_cast<int32_t>(random() % 100'000);
  peer_info.slot = static_cast<uint16_t>(random() % 1024);
  peer_info.world_size = static_cast<uint16_t>(random());
  peer_info.host_key = text(random, 30);
  peer_info.hostname = "node-" + std::to_string(random() % 100);
  peer_info.address = text(random, 200);
  peer_info.heartbeat_port = static_cast<uint16_t>(random());
  for (uint64_t i = random() % 3; i > 0; --i) {
    peer_info.rails.push_back({"eth" + std::to_string(i), static_cast<uint32_t>(random()),
                               static_cast<uint8_t>(random() % 33)});
  }
  peer_info.transports = "posix, tcp";
  peer_info.memory = text(random, 40);
  for (uint64_t i = random() % 3; i > 0; --i) {
    peer_info.renewed.push_back({random(), static_cast<uint32_t>(random()),
                                 static_cast<uint32_t>(random()), static_cast<uint32_t>(random())});
  }
  return peer_info;
}

bool read_peer_info(std::string_view input, Random&) {
  const PeerInfo peer_info = PeerInfo::decode(input);
  require(peer_info.pid > 0, "a peer info has no PID");
  require(PeerInfo::decode(peer_info.encode()).encode() == peer_info.encode(),
          "a peer info is written otherwise");
  for (const Nic& nic : peer_info.rails) require(nic.prefix <= 32, "a network has too many bits");
  return true;
}

const JobSecret kSecret("a secret");

bool read_handle(std::string_view input, Random&) {
  const PeerAddress handle = PeerAddress::decode(input, kSecret);
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
  const PeerAddress handle = PeerAddress::decode(text, kSecret);
  require(handle.rank >= -1, "a handle has an impossible rank");
  return read_peer_info(handle.peer_info.encode(), random);
}

}  // namespace

std::vector<Format> peer_info_formats() {
  const auto handle = [](Random& random) {
    return PeerAddress{example(random), static_cast<int>(random() % 9) - 1};
  };
  const auto fields = [=](Random& random) {
    const PeerAddress it = handle(random);
    return encode_list({std::to_string(it.rank), it.peer_info.encode()});
  };
  return {
      {"peer_info", 15, [](Random& random) { return example(random).encode(); }, read_peer_info},
      {"handle", 4, [=](Random& random) { return handle(random).encode(kSecret); }, read_handle},
      {"sealed handle", 4, fields, read_sealed_handle},
  };
}

}  // namespace q7x2::fuzz
