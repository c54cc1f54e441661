#include "transport/peer/bootstrap_records.h"

#include <zstd.h>

#include <cstdint>

#include "base/byte_codec.h"

namespace q7x2 {
namespace {

constexpr std::string_view kMagic = "q7x2 epoch 1";
constexpr const char* kBundle = "what ranks publish in the store";
constexpr int kLevel = 1;
// A bundle of 8,192 peer infos has about 3 MB.
constexpr unsigned long long kMostBytes = 64ULL << 20;

}  // namespace

void refuse_bytes() {
  throw Error(ErrorCode::kMismatch,
              "the store holds something else than q7x2 writes: do all ranks run the same version, "
              "and use the backend q7x2 for this group?");
}

std::string encode_entry(int rank, const std::string& bytes) {
  return ByteWriter().put(int32_t{rank}).put(bytes).take();
}

std::vector<std::string> decode_bundle(std::string_view bundle, int size) {
  ByteReader in(bundle, kBundle);
  std::vector<std::string> by_rank(static_cast<size_t>(size));
  std::vector<bool> found(by_rank.size());
  for (int i = 0; i < size; ++i) {
    const auto rank = static_cast<size_t>(in.get_between<int32_t>(0, size - 1, "a rank"));
    if (found[rank]) refuse_bytes();
    found[rank] = true;
    by_rank[rank] = in.get_string();
  }
  in.end();
  return by_rank;
}

std::map<int, JoinRecord> records_of(std::string_view bundle) {
  ByteReader in(bundle, kBundle);
  std::map<int, JoinRecord> records;
  while (!in.at_end()) {
    const auto rank = in.get<int32_t>();
    records[rank] = JoinRecord::decode(in.get_string());
  }
  return records;
}

std::vector<std::string> sealed_peer_infos_of(const std::map<int, JoinRecord>& roster, int size) {
  std::vector<std::string> peer_infos;
  for (const auto& [rank, entry] : roster) {
    if (rank != static_cast<int>(peer_infos.size())) refuse_bytes();
    peer_infos.push_back(entry.peer_info);
  }
  if (peer_infos.size() != static_cast<size_t>(size)) refuse_bytes();
  return peer_infos;
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
  return ByteWriter().put(failure.code()).put(int32_t{failure.rank()}).put(failure.what()).take();
}

Error decode_failure(const std::string& bytes) {
  ByteReader in(bytes, "what a rank says of its failure");
  const auto code = in.get_between(ErrorCode{}, ErrorCode::kInternal, "an error");
  const auto rank = in.get<int32_t>();
  const std::string text = in.get_string();
  in.end();
  return Error(code, text, rank);
}

std::string EpochState::encode() const {
  return ByteWriter()
      .put(kMagic)
      .put(epoch)
      .put(phase)
      .put(what)
      .put(uint8_t{is_elsewhere})
      .put(body)
      .take();
}

EpochState EpochState::decode(const std::string& bytes) {
  ByteReader in(bytes, "the state of a new group in the store");
  if (in.get_string() != kMagic) refuse_bytes();
  EpochState state;
  state.epoch = in.get<int64_t>();
  state.phase = in.get_between(Phase::kNone, Phase::kOrphaned, "a phase");
  state.what = in.get_string();
  state.is_elsewhere = in.get_between<uint8_t>(0, 1, "a place") == 1;
  state.body = in.get_string();
  in.end();
  return state;
}

std::string JoinRecord::encode() const {
  return ByteWriter()
      .put(nonce)
      .put(int32_t{size})
      .put(failure ? encode_failure(*failure) : "")
      .put(peer_info)
      .take();
}

JoinRecord JoinRecord::decode(const std::string& bytes) {
  ByteReader in(bytes, "what a rank says when it joins");
  JoinRecord record;
  record.nonce = in.get_string();
  record.size = in.get<int32_t>();
  if (const std::string failure = in.get_string(); !failure.empty()) {
    record.failure = decode_failure(failure);
  }
  record.peer_info = in.get_string();
  in.end();
  return record;
}

}  // namespace q7x2
