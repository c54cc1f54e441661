#include "transport/peer/bootstrap_message.h"

#include "base/byte_codec.h"
#include "transport/peer/bootstrap_records.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {
namespace {

constexpr std::string_view kMagic = "q7x2 peers 2";
constexpr size_t kMostText = 2048;
constexpr int kMostRounds = 32;

BootstrapMessage read_message(std::string_view bytes) {
  ByteReader in(bytes, "a message of a bootstrap");
  if (in.get_string() != kMagic) refuse_bytes();
  BootstrapMessage message;
  message.kind = in.get_between(BootstrapKind::kPieces, BootstrapKind::kCommit, "a kind");
  message.key = in.get_string();
  message.attempt = in.get<uint64_t>();
  message.failed_since = in.get_between<uint64_t>(0, message.attempt, "an attempt");
  message.peer_info = in.get_string();
  message.process = in.get<uint64_t>();
  message.list = in.get<uint64_t>();
  message.exchange = in.get_string();
  message.round = in.get_between<int32_t>(0, kMostRounds - 1, "a round");
  message.body = in.get_string();
  message.members = in.get_string();
  message.subject = in.get<int32_t>();
  message.code = in.get_between(ErrorCode{}, ErrorCode::kInternal, "an error");
  message.text = in.get_string();
  in.end();
  if (message.members.size() > kMostText || message.text.size() > kMostText) refuse_bytes();
  return message;
}

}  // namespace

std::string BootstrapMessage::encode() const {
  return ByteWriter()
      .put(kMagic)
      .put(kind)
      .put(key)
      .put(attempt)
      .put(failed_since)
      .put(peer_info)
      .put(process)
      .put(list)
      .put(exchange)
      .put(int32_t{round})
      .put(body)
      .put(members.substr(0, kMostText))
      .put(int32_t{subject})
      .put(code)
      .put(text.substr(0, kMostText))
      .take();
}

std::optional<BootstrapMessage> BootstrapMessage::decode(std::string_view bytes) {
  try {
    return read_message(bytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string pack_pieces(const std::vector<std::string>& pieces) {
  return pack(encode_list(pieces));
}

std::vector<std::string> unpack_pieces(const std::string& body, int count) {
  std::vector<std::string> pieces = decode_list(unpack(body));
  if (pieces.size() != static_cast<size_t>(count)) {
    throw Error(ErrorCode::kMismatch, "a message of a bootstrap has " +
                                          std::to_string(pieces.size()) + " pieces, expected " +
                                          std::to_string(count));
  }
  return pieces;
}

}  // namespace q7x2
