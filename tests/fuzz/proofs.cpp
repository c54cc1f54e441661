// What proves where a message comes from: envelopes, heartbeat hellos and seals. Only what was made
// with the secret is accepted, byte for byte, and envelopes once.
#include <algorithm>
#include <memory>
#include <set>

#include "format.h"
#include "transport/peer/heartbeat_hello.h"
#include "transport/trust/envelope.h"

namespace q7x2::fuzz {
namespace {

const JobSecret kSecret("a secret");

Identity identity(uint64_t process) {
  Identity it{process, {}};
  it.key.fill(static_cast<std::byte>(process));
  return it;
}

/// One sender and one receiver, for a run of one format.
struct Post {
  Envelopes sender{kSecret, identity(1)};
  Envelopes receiver{kSecret, identity(2)};
  std::set<std::string> sent;

  std::string example(Random& random) {
    const std::string message(random() % 80, static_cast<char>(random()));
    const auto kind = random() % 8 == 0 ? Envelopes::Kind::kBootstrap : Envelopes::Kind::kControl;
    std::string bytes = sender.close(kind, identity(2), message);
    if (kind == Envelopes::Kind::kControl) sent.insert(bytes);
    return bytes;
  }

  bool read(std::string_view input) {
    const auto opened = receiver.open(Envelopes::Kind::kControl, input);
    if (!opened) return false;
    require(opened->sender == 1, "a message of another process was accepted");
    require(sent.contains(std::string(input)), "a message was accepted that nobody sent");
    require(!receiver.open(Envelopes::Kind::kControl, input), "a message was accepted twice");
    return true;
  }
};

using Turn = HeartbeatHello::Turn;

const MessageKey kKey = kSecret.key_to(identity(2));

std::string hello(Random& random) {
  HeartbeatHello it{random() % 4, random() % 4, static_cast<uint32_t>(random() % 3),
                    static_cast<HeartbeatHello::Topic>(random() % 4), random()};
  const auto bytes = it.encode(Turn::kCall, kKey);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool read_hello(std::string_view input, Random&) {
  HeartbeatHello::Bytes bytes{};
  std::ranges::copy(std::as_bytes(std::span(input.substr(0, bytes.size()))), bytes.begin());
  require(!HeartbeatHello::decode(bytes, Turn::kAnswer, kKey), "a call is an answer");
  const auto read = HeartbeatHello::decode(bytes, Turn::kCall, kKey);
  if (!read) return false;
  require(read->encode(Turn::kCall, kKey) == bytes, "a hello was forged");
  return true;
}

std::string sealed(Random& random) {
  return kSecret.seal("peer_info/1/2", std::string(random() % 80, static_cast<char>(random())));
}

bool read_sealed(std::string_view input, Random&) {
  const std::string_view text = kSecret.open("peer_info/1/2", input, "it");
  require(kSecret.seal("peer_info/1/2", text) == input, "a seal was forged");
  require(kSecret.seal("peer_info/0/2", text) != input, "the place does not matter");
  return true;
}

}  // namespace

std::vector<Format> proof_formats() {
  const auto post = std::make_shared<Post>();
  return {
      {"envelope", 14, [=](Random& random) { return post->example(random); },
       [=](std::string_view input, Random&) { return post->read(input); }},
      {"heartbeat hello", 8, hello, read_hello},
      {"seal", 3, sealed, read_sealed},
  };
}

}  // namespace q7x2::fuzz
