// Which messages of a collective are compressed. This depends on the edge that they cross.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace q7x2 {

struct Fabric;

/// The edges whose messages are coded, ordered by inclusion: each set contains the ones before it.
/// An edge leads from one rank to another.
enum class Edges : uint8_t {
  kNone,
  kRacks,  ///< between ranks of different racks
  kHosts,  ///< between ranks of different hosts
  kAll,
};

/// "none", "racks", "hosts", "all".
const char* to_string(Edges edges);

/// The edges that a caller wants to be coded.
enum class EdgeWish : uint8_t {
  kAuto,  ///< as few as make the call fast, but at least some: see kWorthMoreLoss
  kAll,   ///< all
  kHost,  ///< those that leave a host
  kRack,  ///< those that leave a rack
  kSlow,  ///< those that make the call fastest, possibly none
};

/// "auto" codes the fewest edges with which the call takes at most this many times as long as with
/// any other coding. Each coded edge loses something, and the model cannot distinguish smaller
/// differences (its median error between hosts is 3 %, see docs/planner.md). It always codes some
/// edges: the model does not know how long the codec takes on a device.
inline constexpr double kWorthMoreLoss = 1.05;

/// "auto", "all", "host", "rack", "slow".
const char* to_string(EdgeWish wish);
/// Throws Error(kInvalidArgument); its message lists the choices.
EdgeWish parse_edge_wish(const std::string& name);

/// The edges of one group. Cheap to copy.
class EdgeCoding {
 public:
  /// `fabric`: null if the hosts are unknown; each rank then counts as a host of its own.
  EdgeCoding(Edges edges, int world_size, const Fabric* fabric);

  Edges edges() const { return edges_; }
  /// Whether messages from one rank to another are coded.
  bool operator()(int from, int to) const {
    return edges_ != Edges::kNone && zone_of(from) != zone_of(to);
  }
  /// An edge is coded if it leads from one zone to another. A zone is a rack, a host or a rank.
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

/// The codings that compete for a wish in a group, the one with most edges first. A coding that
/// codes the same edges as an earlier one is left out.
std::vector<EdgeCoding> edge_codings(EdgeWish wish, int world_size, const Fabric* fabric);

}  // namespace q7x2
