// Which messages of a collective are compressed: a question of the edge that they cross.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace q7x2 {

struct Fabric;

/// The edges whose messages are coded, the fewest first: each set contains those before it. An edge
/// leads from one rank to another.
enum class Edges : uint8_t {
  kNone,
  kRacks,  ///< between ranks of different racks
  kHosts,  ///< between ranks of different hosts
  kAll,
};

/// "none", "racks", "hosts", "all".
const char* to_string(Edges edges);

/// The edges that a caller wishes to be coded.
enum class EdgeWish : uint8_t {
  kAuto,  ///< some, and as few as make the call fast: see kWorthMoreLoss
  kAll,   ///< all
  kHost,  ///< those that leave a host
  kRack,  ///< those that leave a rack
  kSlow,  ///< whichever make the call fastest; none if that is fastest
};

/// "auto" codes the fewest edges with which the call takes at most so many times as long as with
/// any other coding: each coded edge loses something, and the model cannot tell less apart (its
/// median error between hosts is 3 %, see docs/planner.md). It always codes some: what the codec
/// takes on a device, which may code the call, the model does not know.
inline constexpr double kWorthMoreLoss = 1.05;

/// "auto", "all", "host", "rack", "slow".
const char* to_string(EdgeWish wish);
/// Throws Error(kInvalidArgument) that lists the choices.
EdgeWish parse_edge_wish(const std::string& name);

/// The edges of one group. Cheap to copy.
class EdgeCoding {
 public:
  /// `fabric`: null if nothing is known of the hosts; each rank is then taken for a host of its
  /// own.
  EdgeCoding(Edges edges, int world_size, const Fabric* fabric);

  Edges edges() const { return edges_; }
  /// Whether messages from one rank to another are coded.
  bool operator()(int from, int to) const {
    return edges_ != Edges::kNone && zone_of(from) != zone_of(to);
  }
  /// Edges are coded if they lead from one zone to another: a rack, a host, a rank.
  int zone_of(int rank) const { return (*zones_)[static_cast<size_t>(rank)]; }
  size_t world_size() const { return zones_->size(); }
  size_t num_zones() const { return num_zones_; }
  /// Whether any edge is coded.
  bool any() const { return num_zones_ > 1; }

 private:
  Edges edges_;
  std::shared_ptr<const std::vector<int>> zones_;
  size_t num_zones_ = 0;
};

/// What a wish means in a group: the codings that compete, the one of most edges first. Those that
/// code the same edges as an earlier one are left out.
std::vector<EdgeCoding> edge_codings(EdgeWish wish, int world_size, const Fabric* fabric);

}  // namespace q7x2
