// Messages of bootstraps, behind their envelopes.
#include "format.h"
#include "transport/peer/bootstrap_message.h"

namespace q7x2::fuzz {
namespace {

constexpr int kPieces = 3;

std::string example(Random& random) {
  BootstrapMessage message;
  message.kind = static_cast<BootstrapKind>(1 + random() % 8);
  message.key = "reconfigure\n" + std::to_string(random() % 10);
  message.peer_info = "a peer_info";
  message.process = random();
  message.list = random();
  message.exchange = "peer_info";
  message.round = static_cast<int>(random() % 12);
  message.body = pack_pieces({"a", std::string(random() % 300, 'b'), ""});
  message.members = "[pid 1 on a, pid 2 on b]";
  message.subject = static_cast<int>(random() % 4) - 1;
  message.text = "why";
  return message.encode();
}

bool read(std::string_view input, Random&) {
  const auto message = BootstrapMessage::decode(input);
  if (!message) return false;
  require(message->kind >= BootstrapKind::kPieces && message->kind <= BootstrapKind::kCommit,
          "a kind");
  require(message->code <= ErrorCode::kInternal, "a code");
  require(message->round >= 0 && message->round < 32, "a round");
  require(unpack_pieces(message->body, kPieces).size() == kPieces, "the number of pieces");
  return true;
}

}  // namespace

std::vector<Format> bootstrap_message_formats() {
  return {{"bootstrap", 6, example, read}};
}

}  // namespace q7x2::fuzz
