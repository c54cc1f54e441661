#include "transport/bootstrap/rendezvous_records.h"

#include <zstd.h>

#include <system_error>

#include "base/parse_number.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {
namespace {

constexpr int kLevel = 1;
// A bundle of 8,192 peer infos has about 3 MB.
constexpr unsigned long long kMostBytes = 64ULL << 20;

int number(const std::string& text) {
  const auto value = parse_number<int>(text);
  if (!value) refuse_bytes();
  return *value;
}

}  // namespace

void refuse_bytes() {
  throw Error(ErrorCode::kMismatch,
              "the store holds something else than q7x2 writes: do all ranks run the same version, "
              "and use the backend q7x2 for this group?");
}

std::string encode_entry(int rank, const std::string& bytes) {
  return encode_list({std::to_string(rank), bytes});
}

std::vector<std::string> decode_bundle(std::string_view bundle, int size) {
  std::vector<std::string> parts = decode_list(bundle);
  const auto ranks = static_cast<size_t>(size);
  if (parts.size() != 2 * ranks) {
    refuse_bytes();
  }
  std::vector<std::string> by_rank(ranks);
  std::vector<bool> found(ranks);
  for (size_t i = 0; i < parts.size(); i += 2) {
    const int rank = number(parts[i]);
    if (rank < 0 || rank >= size || found[static_cast<size_t>(rank)]) {
      refuse_bytes();
    }
    found[static_cast<size_t>(rank)] = true;
    by_rank[static_cast<size_t>(rank)] = std::move(parts[i + 1]);
  }
  return by_rank;
}

std::map<int, JoinRecord> records_of(std::string_view bundle) {
  const std::vector<std::string> parts = decode_list(bundle);
  if (parts.size() % 2 != 0) {
    refuse_bytes();
  }
  std::map<int, JoinRecord> records;
  for (size_t i = 0; i < parts.size(); i += 2) {
    records[number(parts[i])] = JoinRecord::decode(parts[i + 1]);
  }
  return records;
}

std::string pack(const std::string& bytes) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t length =
      ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), kLevel);
  if (ZSTD_isError(length) != 0) {
    throw Error(ErrorCode::kInternal, std::string("zstd: ") + ZSTD_getErrorName(length));
  }
  packed.resize(length);
  return packed;
}

std::string unpack(const std::string& packed) {
  const unsigned long long length = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (length > kMostBytes) {  // what zstd says of no frame at all is larger still
    refuse_bytes();
  }
  std::string bytes(length, '\0');
  if (ZSTD_decompress(bytes.data(), length, packed.data(), packed.size()) != length) {
    refuse_bytes();
  }
  return bytes;
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
  const int code = number(parts[0]);
  if (code < 0 || code > static_cast<int>(ErrorCode::kInternal)) {
    refuse_bytes();
  }
  return Error(static_cast<ErrorCode>(code), parts[2], number(parts[1]));
}

std::string JoinRecord::encode() const {
  return encode_list(
      {nonce, std::to_string(size), failure ? encode_failure(*failure) : "", peer_info});
}

JoinRecord JoinRecord::decode(const std::string& bytes) {
  const std::vector<std::string> parts = decode_list(bytes);
  if (parts.size() != 4) {
    refuse_bytes();
  }
  JoinRecord record;
  record.nonce = parts[0];
  record.size = number(parts[1]);
  if (!parts[2].empty()) {
    record.failure = decode_failure(parts[2]);
  }
  record.peer_info = parts[3];
  return record;
}

}  // namespace q7x2
