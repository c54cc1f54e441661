#include "plan/choose/publication.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/digest.h"
#include "base/error.h"

namespace q7x2 {
namespace {

constexpr uint32_t kMagic = 0x71377832;  // "q7x2"
constexpr uint32_t kFormat = 3;

// The wire form. Texts end with a null byte.
struct WireProposal {
  uint64_t digest = 0;
  uint64_t slice_bytes = 0;
  uint64_t part_bytes = 0;
  double seconds = 0;
  int32_t window = 0;
  uint32_t edges = 0;
  char algorithm[192] = {};
};

struct Wire {
  uint32_t magic = kMagic;
  uint32_t format = kFormat;
  uint64_t count = 0;
  uint64_t epoch = 0;
  WireProposal proposals[Publication::kMostProposals];
  char environment[248] = {};
  uint64_t check = 0;  ///< see check_of
};
static_assert(sizeof(Wire) <= Publication::kBytes);
static_assert(std::is_trivially_copyable_v<Wire>);

/// A digest of all fields except `check`.
uint64_t check_of(Wire wire) {
  wire.check = 0;
  Digest digest;
  digest.add_all(std::span(reinterpret_cast<const uint8_t*>(&wire), sizeof(wire)));
  return digest.value();
}

template <size_t kSize>
void put(char (&place)[kSize], const std::string& text) {
  std::memcpy(place, text.data(), std::min(text.size(), kSize - 1));
}

template <size_t kSize>
bool ends(const char (&text)[kSize]) {
  return text[kSize - 1] == 0;
}

bool is_sound(const WireProposal& wire) {
  return wire.slice_bytes > 0 && wire.slice_bytes % 64 == 0 && wire.part_bytes > 0 &&
         wire.part_bytes % 64 == 0 && wire.window >= 1 && wire.window <= Choice::kMaxWindow &&
         wire.edges <= static_cast<uint32_t>(Edges::kAll) && ends(wire.algorithm);
}

bool is_sound(const Wire& wire) {
  return wire.magic == kMagic && wire.format == kFormat && wire.check == check_of(wire) &&
         wire.count >= 1 && wire.count <= Publication::kMostProposals && ends(wire.environment) &&
         std::all_of(wire.proposals, wire.proposals + wire.count,
                     [](const WireProposal& each) { return is_sound(each); });
}

}  // namespace

void Publication::write(std::span<std::byte> bytes) const {
  if (proposals.empty() || proposals.size() > kMostProposals) {
    throw Error(ErrorCode::kInternal, "a publication cannot hold that many proposals");
  }
  Wire wire;
  wire.count = proposals.size();
  wire.epoch = epoch;
  for (size_t i = 0; i < proposals.size(); ++i) {
    const Proposal& proposal = proposals[i];
    WireProposal& to = wire.proposals[i];
    if (proposal.algorithm.size() >= sizeof(to.algorithm)) {
      throw Error(ErrorCode::kInternal,
                  "the name of an algorithm is too long: " + proposal.algorithm);
    }
    to.digest = proposal.digest;
    to.slice_bytes = proposal.slice_bytes;
    to.part_bytes = proposal.part_bytes;
    to.seconds = proposal.seconds;
    to.window = proposal.window;
    to.edges = static_cast<uint32_t>(proposal.edges);
    put(to.algorithm, proposal.algorithm);
  }
  put(wire.environment, environment);
  wire.check = check_of(wire);
  std::ranges::fill(bytes, std::byte{0});
  std::memcpy(bytes.data(), &wire, sizeof(wire));
}

Publication Publication::read(std::span<const std::byte> bytes) {
  Wire wire;
  std::memcpy(&wire, bytes.data(), std::min(bytes.size(), sizeof(wire)));
  if (bytes.size() != kBytes || !is_sound(wire)) {
    throw Error(ErrorCode::kInternal, "rank 0's choice for a collective cannot be read", 0);
  }
  Publication publication;
  for (size_t i = 0; i < wire.count; ++i) {
    const WireProposal& from = wire.proposals[i];
    publication.proposals.push_back({.algorithm = from.algorithm,
                                     .edges = static_cast<Edges>(from.edges),
                                     .slice_bytes = from.slice_bytes,
                                     .part_bytes = from.part_bytes,
                                     .window = from.window,
                                     .seconds = from.seconds,
                                     .digest = from.digest});
  }
  publication.environment = wire.environment;
  publication.epoch = wire.epoch;
  return publication;
}

}  // namespace q7x2
