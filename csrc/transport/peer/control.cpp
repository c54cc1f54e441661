#include "transport/peer/control.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

constexpr uint16_t kVersion = 9;
constexpr size_t kMaxText = 2048;

// The wire form, followed by `text_length` bytes of text.
struct Header {
  uint16_t version;
  uint8_t type;
  uint8_t code;
  uint16_t slot;
  uint16_t sender_slot;
  int32_t sender;
  int32_t receiver;
  int32_t subject;
  uint32_t text_length;
  uint64_t sequence;
  uint64_t fingerprint;
  uint32_t state;
  uint32_t comes_twice;
  std::array<uint64_t, 4> unended;  // the lowest bits first
};
static_assert(sizeof(Header) == 80);
constexpr size_t kWordBits = 64;

bool is_rank(int32_t rank) {
  return rank >= 0 && rank < tag::kMaxRanks;
}

std::array<uint64_t, 4> words_of(const Unended& bits) {
  std::array<uint64_t, 4> words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = (bits >> (i * kWordBits) & Unended(~uint64_t{0})).to_ullong();
  }
  return words;
}

Unended bits_of(const std::array<uint64_t, 4>& words) {
  Unended bits;
  for (size_t i = 0; i < words.size(); ++i) bits |= Unended(words[i]) << (i * kWordBits);
  return bits;
}

}  // namespace

std::string Control::encode() const {
  const size_t text_length = std::min(text.size(), kMaxText);
  const Header header{kVersion,
                      static_cast<uint8_t>(type),
                      static_cast<uint8_t>(code),
                      slot,
                      sender_slot,
                      sender,
                      receiver,
                      subject,
                      static_cast<uint32_t>(text_length),
                      sequence,
                      fingerprint,
                      static_cast<uint32_t>(state),
                      comes_twice ? 1U : 0U,
                      words_of(unended)};
  std::string bytes(sizeof(Header) + text_length, '\0');
  std::memcpy(bytes.data(), &header, sizeof(Header));
  std::memcpy(bytes.data() + sizeof(Header), text.data(), text_length);
  return bytes;
}

std::optional<Control> Control::decode(uint64_t sender, std::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof(Header)) {
    return std::nullopt;
  }
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.version != kVersion || header.text_length > kMaxText ||
      header.text_length != bytes.size() - sizeof(Header) ||
      header.type < static_cast<uint8_t>(ControlType::kHello) ||
      header.type > static_cast<uint8_t>(ControlType::kFailedCall) ||
      header.state > static_cast<uint32_t>(CallState::kComplete) || header.comes_twice > 1 ||
      header.code > static_cast<uint8_t>(ErrorCode::kInternal) || header.slot >= tag::kMaxGroups ||
      header.sender_slot >= tag::kMaxGroups || !is_rank(header.sender) ||
      !is_rank(header.receiver) || !(header.subject == -1 || is_rank(header.subject))) {
    return std::nullopt;
  }
  Control control;
  control.type = static_cast<ControlType>(header.type);
  control.slot = header.slot;
  control.sender_slot = header.sender_slot;
  control.sender = header.sender;
  control.receiver = header.receiver;
  control.process = sender;
  control.code = static_cast<ErrorCode>(header.code);
  control.subject = header.subject;
  control.sequence = header.sequence;
  control.fingerprint = header.fingerprint;
  control.state = static_cast<CallState>(header.state);
  control.comes_twice = header.comes_twice != 0;
  control.unended = bits_of(header.unended);
  control.text = bytes.substr(sizeof(Header));
  return control;
}

}  // namespace q7x2
