#include "transport/bootstrap/assembly_message.h"

#include "base/parse_number.h"
#include "transport/bootstrap/rendezvous_records.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {
namespace {

constexpr std::string_view kMagic = "q7x2 assembly 1";
constexpr size_t kFields = 13;
constexpr size_t kMostText = 2048;
constexpr int kMostRounds = 32;

template <typename Number>
bool read(const std::string& text, Number& number) {
  const auto value = parse_number<Number>(text);
  if (value) number = *value;
  return value.has_value();
}

}  // namespace

std::string AssemblyMessage::encode() const {
  return encode_list({std::string(kMagic), std::to_string(static_cast<int>(kind)), key, peer_info,
                      std::to_string(process), std::to_string(list), exchange,
                      std::to_string(round), body, members.substr(0, kMostText),
                      std::to_string(subject), std::to_string(static_cast<int>(code)),
                      text.substr(0, kMostText)});
}

std::optional<AssemblyMessage> AssemblyMessage::decode(std::string_view bytes) {
  std::vector<std::string> fields;
  try {
    fields = decode_list(bytes);
  } catch (const Error&) {
    return std::nullopt;
  }
  if (fields.size() != kFields || fields[0] != kMagic) {
    return std::nullopt;
  }
  AssemblyMessage message;
  int kind = 0;
  int code = 0;
  const bool is_sound = read(fields[1], kind) && read(fields[4], message.process) &&
                        read(fields[5], message.list) && read(fields[7], message.round) &&
                        read(fields[10], message.subject) && read(fields[11], code);
  if (!is_sound || kind < static_cast<int>(AssemblyKind::kPieces) ||
      kind > static_cast<int>(AssemblyKind::kCommit) || code < 0 ||
      code > static_cast<int>(ErrorCode::kInternal) || message.round < 0 ||
      message.round >= kMostRounds || fields[9].size() > kMostText ||
      fields[12].size() > kMostText) {
    return std::nullopt;
  }
  message.kind = static_cast<AssemblyKind>(kind);
  message.code = static_cast<ErrorCode>(code);
  message.key = std::move(fields[2]);
  message.peer_info = std::move(fields[3]);
  message.exchange = std::move(fields[6]);
  message.body = std::move(fields[8]);
  message.members = std::move(fields[9]);
  message.text = std::move(fields[12]);
  return message;
}

std::string pack_pieces(const std::vector<std::string>& pieces) {
  return pack(encode_list(pieces));
}

std::vector<std::string> unpack_pieces(const std::string& body, int count) {
  std::vector<std::string> pieces = decode_list(unpack(body));
  if (pieces.size() != static_cast<size_t>(count)) {
    throw Error(ErrorCode::kMismatch, "a message of an assembly has " +
                                          std::to_string(pieces.size()) + " pieces, expected " +
                                          std::to_string(count));
  }
  return pieces;
}

}  // namespace q7x2
