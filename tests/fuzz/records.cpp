// What the ranks of a new group write in the store, and what they tell each other of themselves.
#include "executor/probe/announcement.h"
#include "format.h"
#include "plan/choose/publication.h"
#include "transport/peer/bootstrap_records.h"
#include "transport/peer/peer_info.h"

namespace q7x2::fuzz {
namespace {

constexpr int kSize = 3;

std::string roster(Random& random) {
  std::string bundle;
  for (int rank = 0; rank < kSize; ++rank) {
    JoinRecord record{
        std::to_string(random()), kSize, {}, "a peer_info " + std::to_string(random())};
    if (random() % 4 == 0) record.failure = Error(ErrorCode::kTransport, "no memory", rank);
    bundle += encode_entry(rank, record.encode());
  }
  return bundle;
}

bool read_roster(std::string_view input, Random&) {
  const std::vector<std::string> by_rank = decode_bundle(input, kSize);
  require(by_rank.size() == kSize, "a bundle has another size");
  for (const auto& [rank, record] : records_of(input)) {
    require(rank >= 0 && rank < kSize, "a rank is out of range");
    require(JoinRecord::decode(record.encode()).encode() == record.encode(),
            "a record is written otherwise");
  }
  return true;
}

bool read_announcement(std::string_view input, Random&) {
  Announcement::decode(input, "a build", "rank 1");
  return true;
}

std::string publication(Random& random) {
  Publication publication;
  for (uint64_t i = 1 + random() % 6; i > 0; --i) {
    publication.proposals.push_back({.algorithm = "ring",
                                     .edges = Edges{},
                                     .slice_bytes = 64 * (1 + random() % 1000),
                                     .part_bytes = 64 * (1 + random() % 1000),
                                     .window = 1,
                                     .seconds = 1e-3,
                                     .digest = random()});
  }
  publication.environment = "a test";
  std::string bytes(Publication::kBytes, '\0');
  publication.write(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

bool read_publication(std::string_view input, Random&) {
  const Publication read = Publication::read(std::as_bytes(std::span(input)));
  require(!read.proposals.empty() && read.proposals.size() <= Publication::kMostProposals,
          "an impossible number of proposals");
  return true;
}

}  // namespace

std::vector<Format> record_formats() {
  const auto packed = [](Random& random) { return pack(roster(random)); };
  const auto announcement = [](Random&) {
    return Announcement{"a build", {.numa_node = 0, .cpus = "0-3,7"}}.encode();
  };
  return {
      {"roster", 8, roster, read_roster},
      {"packed roster", 2, packed,
       [](std::string_view input, Random& random) {
         return read_roster(unpack(std::string(input)), random);
       }},
      {"announcement", 2, announcement, read_announcement},
      {"publication", 1, publication, read_publication},
  };
}

}  // namespace q7x2::fuzz
