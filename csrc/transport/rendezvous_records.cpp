#include "transport/rendezvous_records.h"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "transport/card.h"

namespace q7x2 {
namespace {

int64_t number(const std::string& text) {
  try {
    size_t used = 0;
    const int64_t value = std::stoll(text, &used);
    if (used == text.size()) {
      return value;
    }
  } catch (const std::logic_error&) {
  }
  refuse_bytes();
}

}  // namespace

void refuse_bytes() {
  throw Error(ErrorCode::kMismatch,
              "the store holds something else than q7x2 writes: do all ranks run the same version, "
              "and use the backend q7x2 for this group?");
}

std::string encode_failure(const Error& failure) {
  return encode_list({std::to_string(static_cast<int>(failure.code())),
                      std::to_string(failure.rank()), failure.what()});
}

Error decode_failure(const std::string& bytes) {
  const std::vector<std::string> parts = decode_list(bytes);
  if (parts.size() != 3) {
    refuse_bytes();
  }
  const int64_t code = number(parts[0]);
  if (code < 0 || code > static_cast<int64_t>(ErrorCode::kInternal)) {
    refuse_bytes();
  }
  return Error(static_cast<ErrorCode>(code), parts[2], static_cast<int>(number(parts[1])));
}

std::string JoinRecord::encode() const {
  return encode_list({nonce, std::to_string(size), failure ? encode_failure(*failure) : "", card});
}

JoinRecord JoinRecord::decode(const std::string& bytes) {
  const std::vector<std::string> parts = decode_list(bytes);
  if (parts.size() != 4) {
    refuse_bytes();
  }
  JoinRecord record;
  record.nonce = parts[0];
  record.size = static_cast<int>(number(parts[1]));
  if (!parts[2].empty()) {
    record.failure = decode_failure(parts[2]);
  }
  record.card = parts[3];
  return record;
}

}  // namespace q7x2
